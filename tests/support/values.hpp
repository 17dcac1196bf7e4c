// Values for the inputs of a form: what kinds of gates, keys and write strengths users have.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sluice/problem.hpp"
#include "support/forms.hpp"
#include "support/random.hpp"

namespace sluice::test {

enum class Gates : unsigned char {
    kZero,           // no decay at all
    kMild,           // logsigmoid(N) / 16
    kStrong,         // logsigmoid(N) * 4
    kSpikes,         // -1000 on 5 % of the entries, else mild
    kMinusInfinity,  // -inf on 2 % of the entries, else mild
    kAllForget,      // -1000 everywhere
    kOneChannel,     // one channel (or head) strong, the others zero
};
enum class Keys : unsigned char {
    kRandom,
    kNormalized,  // length one
    kCorrelated,  // length one, 0.95 between any two
    kIdentical,   // length one, all the same
    kFour,        // length one, the same four in turn
};
enum class Beta : unsigned char { kRandom, kOne, kTwo };

[[nodiscard]] const char* to_string(Gates gates) noexcept;
[[nodiscard]] const char* to_string(Keys keys) noexcept;
[[nodiscard]] const char* to_string(Beta beta) noexcept;

/// A tensor's elements in row-major order, before they are rounded to a dtype.
struct Values {
    std::vector<std::int64_t> shape;
    std::vector<double> data;
};

[[nodiscard]] std::int64_t extent_of(const Dims& dims, Axis axis);
[[nodiscard]] std::vector<std::int64_t> shape_of(const Dims& dims, const std::vector<Axis>& axes);

struct ValueKinds {
    Gates gates = Gates::kMild;
    Keys keys = Keys::kRandom;
    Beta beta = Beta::kRandom;
};

/// One array per input of `spec`, by name.
[[nodiscard]] std::map<std::string, Values> make_values(const Form& form, const Spec& spec,
                                                        const Dims& dims, const ValueKinds& kinds,
                                                        std::uint64_t seed);

/// Standard normal numbers times `size`.
[[nodiscard]] Values normal_values(std::vector<std::int64_t> shape, double size,
                                   std::uint64_t seed);

}  // namespace sluice::test
