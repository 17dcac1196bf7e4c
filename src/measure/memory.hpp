// Memory of this process: what a call needs on top of what is already there, and what is left.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace sluice::measure {

struct PeakMemory {
    std::int64_t growth_bytes = 0;  // highest resident set during the call - the one before it
    std::string method;             // "VmHWM", or "getrusage (lower bound)" where that is refused
};

/// Runs `call` once. Memory that earlier calls freed is given back to the system first, so that the
/// call cannot hide in it; memory that they kept (a workspace per thread, say) is not seen.
[[nodiscard]] PeakMemory measure_peak_memory(const std::function<void()>& call);

/// What the system says can be allocated without swapping, within the limits of the control group
/// (a container's); 0 if it does not say.
[[nodiscard]] std::int64_t available_memory_bytes();

}  // namespace sluice::measure
