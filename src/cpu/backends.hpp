// The two back ends of this layer.
#pragma once

#include "sluice/backend.hpp"

namespace sluice::cpu {

[[nodiscard]] const Backend& cpu_backend();     // chunked and recurrent, float32 or float64
[[nodiscard]] const Backend& oracle_backend();  // float64 time loop

}  // namespace sluice::cpu
