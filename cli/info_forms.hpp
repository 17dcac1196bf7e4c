// The forms of an op: what make_spec() builds from the tensors and settings that it is given.
#pragma once

#include <string>
#include <vector>

#include "sluice/spec.hpp"
#include "sluice/variants.hpp"

namespace sluice::cli {

struct OpForm {
    std::string given;                  // what asks for it: "g_raw A_log, --set lower_bound=-5"
    Spec spec;                          // with all of its optional inputs
    std::vector<std::string> optional;  // names of inputs that it also does without
};

/// The plain form first. Found by asking the variant, so that a new one needs no entry here.
[[nodiscard]] std::vector<OpForm> forms_of(const Variant& variant);

/// One line per backend and phase: the element types that it takes, "none: reason" without any.
[[nodiscard]] std::vector<std::string> support_of(const Spec& spec);

}  // namespace sluice::cli
