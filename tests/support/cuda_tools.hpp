// Tests that need a CUDA compiler, or a tool that reads machine code.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace sluice::test {

/// Whether compilers and tools must be there (scripts/steps.sh).
[[nodiscard]] inline bool cuda_tools_are_required() {
    const char* required = std::getenv("SLUICE_REQUIRE_CUDA_TOOLS");
    return required != nullptr && std::string_view(required) == "1";
}

/// Of a fixture's SetUp(): skips the test, or fails it where the tool must be there.
inline void skip_without(const std::string& tool) {
    if (cuda_tools_are_required()) FAIL() << "no " << tool;
    GTEST_SKIP() << "no " << tool << " on this machine";
}

}  // namespace sluice::test
