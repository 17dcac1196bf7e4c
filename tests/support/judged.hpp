// The back ends that are held to the project's bounds.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sluice/problem.hpp"

namespace sluice::test {

/// A back end, and what it must take. What it does not claim it must refuse.
struct Judged {
    std::string name;
    std::vector<Update> updates;
    std::vector<Decay> decays;
    std::vector<Precision> precisions;  // resolved ones
    std::vector<Phase> phases;
    bool normalizers = false;
    bool checkpoints = false;

    [[nodiscard]] bool takes(const Spec& spec, Precision precision, Phase phase,
                             bool with_checkpoints = false) const;
};

/// All but the oracle, which judges. A new back end is one line here.
[[nodiscard]] std::span<const Judged> judged_backends();

}  // namespace sluice::test
