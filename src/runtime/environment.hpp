// The environment, read once.
#pragma once

#include <string>

namespace sluice {

struct Environment {
    std::string backend;  // SLUICE_BACKEND: the backend of calls that name none
};

[[nodiscard]] const Environment& environment();

}  // namespace sluice
