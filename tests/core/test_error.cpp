// The one error type.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "sluice/error.hpp"

namespace sluice {
namespace {

TEST(Error, SaysWhatWasRefusedAndWhatWouldBeAccepted) {
    const Error error(ErrorCode::kShape, "k", "float32 [2, 3]", "[B, T, H, K]");
    EXPECT_STREQ(error.what(), "k: got float32 [2, 3]; accepted: [B, T, H, K]");
    EXPECT_EQ(error.code(), ErrorCode::kShape);
    EXPECT_EQ(error.argument(), "k");
    EXPECT_EQ(error.value(), "float32 [2, 3]");
    EXPECT_EQ(error.accepted(), "[B, T, H, K]");
}

TEST(Error, CodesHaveDistinctNames) {
    std::set<std::string> names;
    for (int code = 0; code <= static_cast<int>(ErrorCode::kFile); ++code) {
        names.insert(to_string(static_cast<ErrorCode>(code)));
    }
    EXPECT_EQ(names.size(), static_cast<std::size_t>(ErrorCode::kFile) + 1);
    EXPECT_FALSE(names.contains("?"));
}

}  // namespace
}  // namespace sluice
