#include "runtime/environment.hpp"

#include <cstdlib>

namespace sluice {

const Environment& environment() {
    static const Environment kEnvironment = [] {
        Environment e;
        if (const char* backend = std::getenv("SLUICE_BACKEND")) e.backend = backend;
        return e;
    }();
    return kEnvironment;
}

}  // namespace sluice
