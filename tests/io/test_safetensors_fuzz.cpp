// Safetensors: mutated files either parse or throw Error(kFile); nothing else, ever.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "io/raw_file.hpp"
#include "sluice/error.hpp"
#include "sluice/safetensors.hpp"

namespace sluice {
namespace {

using test::parse_exactly;
using test::raw_file;

constexpr std::uint64_t kSeed = 20261129;

/// A small valid file with every element type, an empty tensor, a scalar and metadata.
std::string valid_file() {
    return raw_file(R"({"__metadata__":{"op":"gla","scale":"0.125"},)"
                    R"("d":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                    R"("l":{"dtype":"I64","shape":[],"data_offsets":[8,16]},)"
                    R"("f":{"dtype":"F32","shape":[1,2],"data_offsets":[16,24]},)"
                    R"("i":{"dtype":"I32","shape":[2],"data_offsets":[24,32]},)"
                    R"("e":{"dtype":"F16","shape":[3,0],"data_offsets":[32,32]},)"
                    R"("h":{"dtype":"BF16","shape":[1,1,1,2],"data_offsets":[32,36]},)"
                    R"("b":{"dtype":"BOOL","shape":[4],"data_offsets":[36,40]}} )",
                    std::string(36, '\x3f') + std::string("\0\1\1\0", 4));
}

/// Bytes that an accepted file's tensors hold; touches each of them.
std::uint64_t touch(const TensorFile& file) {
    std::uint64_t bytes = 0;
    volatile unsigned sum = 0;
    for (const auto& [name, tensor] : file.tensors) {
        const auto* data = static_cast<const unsigned char*>(tensor.view().data);
        for (std::size_t i = 0; i < tensor.size_bytes(); ++i) sum = sum + data[i];
        bytes += tensor.size_bytes();
    }
    return bytes;
}

struct Outcome {
    int accepted = 0;
    int refused = 0;
};

void attempt(const std::string& bytes, Outcome& outcome) {
    try {
        const std::uint64_t held = touch(parse_exactly(bytes));
        ASSERT_LE(held, bytes.size());
        ++outcome.accepted;
    } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kFile) << error.what();
        ++outcome.refused;
    } catch (const std::exception& other) {
        FAIL() << "threw " << other.what();
    }
}

TEST(SafetensorsFuzz, EveryTruncationIsRefused) {
    const std::string file = valid_file();
    Outcome whole;
    attempt(file, whole);
    ASSERT_EQ(whole.accepted, 1);
    Outcome outcome;
    for (std::size_t length = 0; length < file.size(); ++length) {
        attempt(file.substr(0, length), outcome);
    }
    EXPECT_EQ(outcome.accepted, 0);
    EXPECT_EQ(outcome.refused, static_cast<int>(file.size()));
}

TEST(SafetensorsFuzz, TruncatedHeadersWithTheirLengthRepaired) {
    const std::string header = valid_file().substr(8);
    Outcome outcome;
    for (std::size_t length = 0; length <= header.size(); ++length) {
        attempt(raw_file(header.substr(0, length), header.substr(length)), outcome);
    }
    EXPECT_GT(outcome.refused, 300);
}

TEST(SafetensorsFuzz, FlippedBytes) {
    std::mt19937_64 random(kSeed);
    const std::string file = valid_file();
    Outcome outcome;
    for (int i = 0; i < 12'000; ++i) {
        std::string mutated = file;
        for (std::uint64_t flips = 1 + random() % 4; flips > 0; --flips) {
            mutated[random() % mutated.size()] ^= static_cast<char>(1U << (random() % 8));
        }
        attempt(mutated, outcome);
        if (HasFatalFailure()) return;
    }
    // Flips inside data and names are legal, flips elsewhere are not: both must have occurred.
    EXPECT_GT(outcome.accepted, 300);
    EXPECT_GT(outcome.refused, 3000);
}

/// Replaces, inserts or removes a piece of the header at a random place.
std::string edited(std::string header, std::mt19937_64& random) {
    static const std::vector<std::string> kPieces = {"-1",
                                                     "0",
                                                     "1",
                                                     "4",
                                                     "8",
                                                     "40",
                                                     "1e3",
                                                     "0.5",
                                                     "9223372036854775807",
                                                     "9223372036854775808",
                                                     "18446744073709551615",
                                                     "1e999",
                                                     "null",
                                                     "true",
                                                     "\"F32\"",
                                                     "\"F8\"",
                                                     "[",
                                                     "]",
                                                     "{",
                                                     "}",
                                                     "[[[[[[[[",
                                                     "{\"a\":{\"a\":",
                                                     ",",
                                                     ":",
                                                     "\"",
                                                     "\\",
                                                     "\\u0000",
                                                     "\xff",
                                                     "\"shape\":[0]",
                                                     "\"dtype\":\"I64\"",
                                                     "\"data_offsets\":[0,8]",
                                                     "\"__metadata__\":{}",
                                                     "4294967296,4294967296",
                                                     "0,0,0,0,0,0,0",
                                                     " ",
                                                     "\n",
                                                     std::string(1, '\0')};
    const std::string& piece = kPieces[random() % kPieces.size()];
    switch (random() % 4) {
        case 0: return header.insert(random() % (header.size() + 1), piece);
        case 1: return header.erase(random() % header.size(), 1 + random() % 12);
        case 2: return header.replace(random() % header.size(), 1 + random() % 6, piece);
        default: break;
    }
    // A whole number, so that the JSON stays well formed and the checks behind it are reached.
    std::vector<std::size_t> starts;
    for (std::size_t i = 1; i < header.size(); ++i) {
        const bool here = std::isdigit(static_cast<unsigned char>(header[i])) != 0;
        const bool before = std::isdigit(static_cast<unsigned char>(header[i - 1])) != 0;
        if (here && !before) starts.push_back(i);
    }
    if (starts.empty()) return header;
    const std::size_t start = starts[random() % starts.size()];
    std::size_t length = 0;
    while (start + length < header.size() &&
           std::isdigit(static_cast<unsigned char>(header[start + length])) != 0) {
        ++length;
    }
    const std::string number =
        random() % 2 ? std::to_string(random() % 48) : kPieces[random() % 11];
    return header.replace(start, length, number);
}

TEST(SafetensorsFuzz, EditedHeaders) {
    std::mt19937_64 random(kSeed + 1);
    const std::string file = valid_file();
    const std::string data = file.substr(file.size() - 40);
    const std::string header = file.substr(8, file.size() - 48);
    Outcome outcome;
    for (int i = 0; i < 20'000; ++i) {
        std::string mutated = header;
        for (std::uint64_t edits = 1 + random() % 2; edits > 0; --edits) {
            mutated = edited(std::move(mutated), random);
        }
        attempt(raw_file(mutated, data), outcome);
        if (HasFatalFailure()) return;
    }
    EXPECT_GT(outcome.accepted, 500);
    EXPECT_GT(outcome.refused, 10'000);
}

TEST(SafetensorsFuzz, RandomBytes) {
    std::mt19937_64 random(kSeed + 2);
    Outcome outcome;
    for (int i = 0; i < 5'000; ++i) {
        std::string header = "{";
        for (std::uint64_t length = random() % 200; length > 0; --length) {
            header += static_cast<char>(random());
        }
        attempt(raw_file(header), outcome);
        if (HasFatalFailure()) return;
    }
    EXPECT_EQ(outcome.accepted + outcome.refused, 5'000);
}

}  // namespace
}  // namespace sluice
