// Safetensors: what is written comes back, and each malformed file is refused for its own reason.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>

#include "io/raw_file.hpp"
#include "sluice/error.hpp"
#include "sluice/safetensors.hpp"

namespace sluice {
namespace {

using test::parse_exactly;
using test::raw_file;
using test::ScratchDirectory;
using testing::IsSubstring;

constexpr DType kAllDTypes[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                                DType::kInt64,   DType::kInt32,   DType::kBool};

/// Any bit patterns, NaNs included; 0 and 1 for bool.
Tensor pattern(DType dtype, std::initializer_list<std::int64_t> shape) {
    Tensor tensor = Tensor::empty(dtype, shape);
    auto* bytes = static_cast<unsigned char*>(tensor.view().data);
    for (std::size_t i = 0; i < tensor.size_bytes(); ++i) {
        bytes[i] = static_cast<unsigned char>(dtype == DType::kBool ? i % 3 == 0 : i * 37 + 251);
    }
    return tensor;
}

void expect_same(const TensorFile& actual, const TensorFile& expected) {
    EXPECT_EQ(actual.metadata, expected.metadata);
    ASSERT_EQ(actual.tensors.size(), expected.tensors.size());
    for (const auto& [name, tensor] : expected.tensors) {
        SCOPED_TRACE(name);
        ASSERT_TRUE(actual.tensors.contains(name));
        const Tensor& other = actual.tensors.at(name);
        ASSERT_EQ(other.dtype(), tensor.dtype());
        ASSERT_EQ(to_string(other.shape()), to_string(tensor.shape()));
        EXPECT_EQ(std::memcmp(other.view().data, tensor.view().data, tensor.size_bytes()), 0);
    }
}

TensorFile one_of_each() {
    TensorFile file;
    for (const DType dtype : kAllDTypes) {
        const std::string name = to_string(dtype);
        file.tensors.emplace(name + " matrix", pattern(dtype, {3, 5}));
        file.tensors.emplace(name + " scalar", pattern(dtype, {}));
        file.tensors.emplace(name + " empty", pattern(dtype, {2, 0, 7}));
        file.tensors.emplace(name + " full rank", pattern(dtype, {1, 2, 1, 2, 1, 3}));
    }
    file.metadata = {{"op", "gla"}, {"text", "quote \" newline \n ünïcode \x01"}, {"", ""}};
    return file;
}

TEST(Safetensors, RoundTripsEveryDType) {
    const ScratchDirectory directory;
    const TensorFile file = one_of_each();
    write_safetensors(directory / "all.safetensors", file);
    expect_same(read_safetensors(directory / "all.safetensors"), file);
    expect_same(parse_exactly(test::read_bytes(directory / "all.safetensors")), file);
}

TEST(Safetensors, RoundTripsAnEmptyFile) {
    const ScratchDirectory directory;
    write_safetensors(directory / "empty.safetensors", {});
    expect_same(read_safetensors(directory / "empty.safetensors"), {});
    EXPECT_EQ(test::read_bytes(directory / "empty.safetensors"), raw_file("{}      "));
}

TEST(Safetensors, WritesTheSameBytesWhateverTheOrderOfInsertion) {
    const ScratchDirectory directory;
    const TensorFile file = one_of_each();
    TensorFile reversed;
    reversed.metadata = file.metadata;
    for (auto it = file.tensors.rbegin(); it != file.tensors.rend(); ++it) {
        reversed.tensors.insert(*it);
    }
    write_safetensors(directory / "a.safetensors", file);
    write_safetensors(directory / "b.safetensors", reversed);
    EXPECT_EQ(test::read_bytes(directory / "a.safetensors"),
              test::read_bytes(directory / "b.safetensors"));
}

TEST(Safetensors, AlignsDataToEightBytesAndTensorsToTheirElements) {
    const ScratchDirectory directory;
    TensorFile file;
    file.tensors.emplace("a", pattern(DType::kBool, {3}));
    file.tensors.emplace("b", pattern(DType::kFloat32, {3}));
    file.tensors.emplace("c", pattern(DType::kFloat64, {1}));
    write_safetensors(directory / "x.safetensors", file);
    const std::string bytes = test::read_bytes(directory / "x.safetensors");
    std::uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    EXPECT_EQ(header % 8, 0U);
    EXPECT_PRED_FORMAT2(IsSubstring, R"("c":{"dtype":"F64","shape":[1],"data_offsets":[0,8]})",
                        bytes);
    EXPECT_PRED_FORMAT2(IsSubstring, R"("b":{"dtype":"F32","shape":[3],"data_offsets":[8,20]})",
                        bytes);
    EXPECT_PRED_FORMAT2(IsSubstring, R"("a":{"dtype":"BOOL","shape":[3],"data_offsets":[20,23]})",
                        bytes);
}

TEST(Safetensors, ReadsTensorsAtAnyAddress) {
    // A header of odd length, and float32 data behind a single bool byte.
    const float value = 1.5F;
    std::string data(5, '\1');
    std::memcpy(data.data() + 1, &value, sizeof value);
    const TensorFile file =
        parse_exactly(raw_file(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[1,5]},)"
                               R"("m":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}} )",
                               data));
    EXPECT_EQ(file.tensors.at("x").elements<float>()[0], value);
    EXPECT_TRUE(file.tensors.at("m").elements<bool>()[0]);
}

// ------------------------------------------------------------------------------------------------

struct Malformed {
    const char* kind;
    std::string bytes;
    const char* value;     // part of the message
    const char* accepted;  // part of the message
};

/// A header with one tensor "x" of four bytes.
std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"x":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
}

std::string two(const std::string& a_offsets, const std::string& b_offsets) {
    return R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)" + a_offsets +
           R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":)" + b_offsets + "}}";
}

std::string with_length(std::uint64_t length, const std::string& rest) {
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    return bytes + rest;
}

std::vector<Malformed> malformed() {
    const std::string four(4, '\0');
    const std::string eight(8, '\0');
    const std::string nested(100'000, '[');
    return {
        {"nothing", "", "0 bytes", "at least 8 bytes"},
        {"a short prefix", "1234567", "7 bytes", "at least 8 bytes"},
        {"header over 100 MB", with_length(100'000'001, "{}"), "a header of 100000001 bytes",
         "at most 100000000 bytes"},
        {"header length 2^64 - 1", with_length(~0ULL, "{}"),
         "a header of 18446744073709551615 bytes", "at most 100000000 bytes"},
        {"header beyond the file", with_length(3, "{}"), "a header of 3 bytes in a file of 10",
         "truncated"},
        {"empty header", with_length(0, ""), "does not begin with '{'", "a JSON object"},
        {"leading space", raw_file(" {}"), "does not begin with '{'", "a JSON object"},
        {"byte order mark", raw_file("\xEF\xBB\xBF{}"), "does not begin with '{'", "a JSON object"},
        {"a list", raw_file("[]"), "does not begin with '{'", "a JSON object"},
        {"not JSON", raw_file("{x}"), "not JSON at its byte 2", "a JSON object"},
        {"unfinished JSON", raw_file(R"({"x":)"), "not JSON", "a JSON object"},
        {"two documents", raw_file("{}{}"), "not JSON at its byte 3", "a JSON object"},
        {"padding with NUL", raw_file(std::string("{}\0", 3)), "a NUL at its byte 3",
         "a JSON object"},
        {"a document behind a NUL", raw_file(std::string("{}\0{}", 5)), "a NUL at its byte 3",
         "a JSON object"},
        {"invalid UTF-8", raw_file("{\"\xff\":1}"), "not JSON", "a JSON object"},
        {"a number that overflows", raw_file(entry("\"F32\"", "[1e999]", "[0,4]"), four),
         "not JSON", "a JSON object"},

        {"entry null", raw_file(R"({"x":null})"), "null for 'x'", "an object with dtype"},
        {"entry a list", raw_file(R"({"x":[]})"), "a list for 'x'", "an object with dtype"},
        {"entry a string", raw_file(R"({"x":"y"})"), "'y' for 'x'", "an object with dtype"},
        {"entry a bool", raw_file(R"({"x":true})"), "true for 'x'", "an object with dtype"},
        {"deep lists", raw_file(R"({"x":)" + nested), "a list for 'x'", "an object with dtype"},
        {"deep lists in a shape", raw_file(R"({"x":{"shape":)" + nested),
         "a list in shape of tensor 'x'", "a list of at most 6 integers"},
        {"deep objects", raw_file(R"({"x":{"dtype":{"a":{"a":{)"),
         "an object in dtype of tensor 'x'", "a string"},
        {"no dtype", raw_file(R"({"x":{"shape":[],"data_offsets":[0,0]}})"),
         "an incomplete entry of tensor 'x'", "dtype, shape and data_offsets"},
        {"no shape", raw_file(R"({"x":{"dtype":"F32","data_offsets":[0,0]}})"),
         "an incomplete entry of tensor 'x'", "dtype, shape and data_offsets"},
        {"no offsets", raw_file(R"({"x":{"dtype":"F32","shape":[]}})"),
         "an incomplete entry of tensor 'x'", "dtype, shape and data_offsets"},
        {"unknown field", raw_file(R"({"x":{"stride":1}})"), "field 'stride' of tensor 'x'",
         "each once"},

        {"duplicate tensors",
         raw_file(R"({"x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
                  R"("x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})"),
         "duplicate name 'x'", "unique"},
        {"duplicate fields", raw_file(R"({"x":{"dtype":"F32","dtype":"F32"}})"),
         "field 'dtype' of tensor 'x'", "each once"},
        {"duplicate metadata", raw_file(R"({"__metadata__":{"a":"1","a":"2"}})"),
         "duplicate name 'a'", "unique"},
        {"metadata twice", raw_file(R"({"__metadata__":{},"__metadata__":{}})"),
         "duplicate name '__metadata__'", "unique"},
        {"metadata a number", raw_file(R"({"__metadata__":{"a":1}})"), "1 for metadata 'a'",
         "strings"},
        {"metadata an object", raw_file(R"({"__metadata__":{"a":{}}})"),
         "an object for metadata 'a'", "strings"},
        {"metadata a list", raw_file(R"({"__metadata__":["a"]})"), "a list for '__metadata__'",
         "an object"},

        {"unknown dtype", raw_file(entry("\"F8_E4M3\"", "[4]", "[0,4]"), four),
         "dtype 'F8_E4M3' of tensor 'x'", "F64, F32, BF16, F16, I64, I32, BOOL"},
        {"dtype a number", raw_file(entry("32", "[1]", "[0,4]"), four), "32 in dtype of tensor 'x'",
         "a string"},
        {"shape a number", raw_file(entry("\"F32\"", "1", "[0,4]"), four),
         "1 in shape of tensor 'x'", "a list of at most 6 integers"},
        {"negative extent", raw_file(entry("\"F32\"", "[-1]", "[0,4]"), four),
         "-1 in shape of tensor 'x'", "0 to 2^63 - 1"},
        {"fractional extent", raw_file(entry("\"F32\"", "[1.5]", "[0,4]"), four),
         "1.5 in shape of tensor 'x'", "0 to 2^63 - 1"},
        {"extent 1.0", raw_file(entry("\"F32\"", "[1.0]", "[0,4]"), four),
         "1.0 in shape of tensor 'x'", "0 to 2^63 - 1"},
        {"extent 2^63", raw_file(entry("\"F32\"", "[9223372036854775808]", "[0,4]"), four),
         "9223372036854775808 in shape", "0 to 2^63 - 1"},
        {"extent a string", raw_file(entry("\"F32\"", "[\"1\"]", "[0,4]"), four),
         "'1' in shape of tensor 'x'", "0 to 2^63 - 1"},
        {"rank 7", raw_file(entry("\"F32\"", "[1,1,1,1,1,1,1]", "[0,4]"), four),
         "more than 6 values in shape of tensor 'x'", "at most 6"},
        {"elements overflow", raw_file(entry("\"F32\"", "[4294967296,4294967296]", "[0,4]"), four),
         "F32 [4294967296, 4294967296]", "at most 2^63 - 1 bytes"},
        {"elements wrap to 1",
         raw_file(entry("\"BOOL\"", "[4294967297,18446744069414584321]", "[0,1]"), "\1"),
         "18446744069414584321 in shape", "0 to 2^63 - 1"},
        {"bytes overflow", raw_file(entry("\"F64\"", "[1152921504606846976]", "[0,4]"), four),
         "F64 [1152921504606846976]", "at most 2^63 - 1 bytes"},
        {"strides of an empty tensor overflow",
         raw_file(entry("\"F32\"", "[0,4294967296,4294967296]", "[0,0]")),
         "F32 [0, 4294967296, 4294967296]", "at most 2^63 - 1 bytes"},

        {"one offset", raw_file(entry("\"F32\"", "[1]", "[4]"), four),
         "1 values in data_offsets of tensor 'x'", "a list of 2 integers"},
        {"three offsets", raw_file(entry("\"F32\"", "[1]", "[0,4,8]"), four),
         "more than 2 values in data_offsets of tensor 'x'", "a list of 2 integers"},
        {"negative offset", raw_file(entry("\"F32\"", "[1]", "[-4,0]"), four),
         "-4 in data_offsets of tensor 'x'", "a list of 2 integers"},
        {"offsets out of order", raw_file(entry("\"F32\"", "[1]", "[4,0]"), four),
         "offsets [4, 0] of tensor 'x'", "begin <= end"},
        {"offsets out of range", raw_file(entry("\"F32\"", "[1]", "[0,4]"), "123"),
         "offsets [0, 4] of tensor 'x' in 3 bytes", "inside the data"},
        {"offsets far out of range",
         raw_file(entry("\"F32\"", "[1]", "[9223372036854775803,9223372036854775807]"), four),
         "offsets [9223372036854775803, 9223372036854775807] of tensor 'x' in 4 bytes",
         "inside the data"},
        {"fewer bytes than the shape", raw_file(entry("\"F32\"", "[2]", "[0,4]"), four),
         "4 bytes for tensor 'x': F32 [2]", "8 bytes"},
        {"more bytes than the shape", raw_file(entry("\"BF16\"", "[]", "[0,4]"), four),
         "4 bytes for tensor 'x': BF16 []", "2 bytes"},
        {"overlap", raw_file(two("[0,4]", "[2,6]"), four + "12"),
         "an overlap before tensor 'b' (begins at 2, the one before ends at 4)", "follow"},
        {"the same bytes twice", raw_file(two("[0,4]", "[0,4]"), four), "an overlap before",
         "follow"},
        {"gap", raw_file(two("[0,4]", "[5,9]"), eight + "1"),
         "a gap before tensor 'b' (begins at 5, the one before ends at 4)", "follow"},
        {"gap at the start", raw_file(entry("\"F32\"", "[1]", "[4,8]"), eight),
         "a gap before tensor 'x' (begins at 4, the one before ends at 0)", "follow"},
        {"bytes after the last", raw_file(entry("\"F32\"", "[1]", "[0,4]"), eight),
         "4 bytes after the last tensor", "fill the data"},
        {"bytes without tensors", raw_file("{}", four), "4 bytes after the last tensor",
         "fill the data"},
        {"bool byte 2", raw_file(entry("\"BOOL\"", "[2]", "[0,2]"), "\1\2"),
         "byte 2 in bool tensor 'x'", "0 or 1"},
    };
}

TEST(Safetensors, RefusesEveryMalformedKindByName) {
    for (const Malformed& file : malformed()) {
        SCOPED_TRACE(file.kind);
        try {
            (void)parse_exactly(file.bytes);
            ADD_FAILURE() << "was accepted";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kFile);
            EXPECT_EQ(error.argument(), "memory");
            EXPECT_PRED_FORMAT2(IsSubstring, file.value, error.value());
            EXPECT_PRED_FORMAT2(IsSubstring, file.accepted, error.accepted());
        }
    }
}

TEST(Safetensors, TheSameRefusalsFromAFile) {
    const ScratchDirectory directory;
    const auto path = directory / "bad.safetensors";
    for (const Malformed& file : malformed()) {
        SCOPED_TRACE(file.kind);
        test::write_bytes(path, file.bytes);
        try {
            (void)read_safetensors(path);
            ADD_FAILURE() << "was accepted";
        } catch (const Error& error) {
            EXPECT_EQ(error.argument(), path.string());
            EXPECT_PRED_FORMAT2(IsSubstring, file.value, error.value());
        }
    }
}

TEST(Safetensors, NamesInMessagesArePrintableAndShort) {
    const std::string name = std::string(1'000'000, 'n');
    try {
        (void)parse_exactly(raw_file("{\"a\\u0000\\n\\u001b" + name + R"(":1})"));
        ADD_FAILURE() << "was accepted";
    } catch (const Error& error) {
        EXPECT_LT(error.value().size(), 200U);
        EXPECT_PRED_FORMAT2(IsSubstring, "a\\u0000\\n\\u001b", error.value());
    }
}

TEST(Safetensors, AcceptsWhatTheFormatAllows) {
    // Trailing spaces, any order of entries, no metadata, an empty name, an empty tensor between.
    const TensorFile file =
        parse_exactly(raw_file(R"({"b":{"shape":[1],"data_offsets":[4,8],"dtype":"F32"},)"
                               R"("e":{"dtype":"F64","shape":[0],"data_offsets":[4,4]},)"
                               R"("":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )",
                               std::string(8, '\0')));
    EXPECT_EQ(file.tensors.size(), 3U);
    EXPECT_EQ(file.tensors.at("").view().rank, 0);
    EXPECT_EQ(file.tensors.at("e").size(), 0);
}

// ------------------------------------------------------------------------------------------------

void expect_file_error(const std::filesystem::path& path, const TensorFile& file,
                       const char* value) {
    try {
        write_safetensors(path, file);
        ADD_FAILURE() << "was written";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kFile);
        EXPECT_EQ(error.argument(), path.string());
        EXPECT_PRED_FORMAT2(IsSubstring, value, error.value());
    }
}

TEST(Safetensors, RefusesPathsThatAreNotFiles) {
    const ScratchDirectory directory;
    for (const auto& path : {directory / "absent", directory / "", directory / "a/b"}) {
        EXPECT_THROW((void)read_safetensors(path), Error) << path;
    }
    expect_file_error(directory / "absent/x.safetensors", {}, "No such file");
    expect_file_error(directory / "", {}, "not a file");
    expect_file_error("/dev/null", {}, "not a file");
    EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
    EXPECT_EQ(directory.entries(), 0U);
}

TEST(Safetensors, RefusesToWriteWhatCannotBeReadBack) {
    const ScratchDirectory directory;
    const auto path = directory / "x.safetensors";
    TensorFile reserved;
    reserved.tensors.emplace("__metadata__", pattern(DType::kFloat32, {1}));
    expect_file_error(path, reserved, "__metadata__");
    TensorFile undefined;
    undefined.tensors.emplace("x", Tensor());
    expect_file_error(path, undefined, "without memory");
    TensorFile bytes;
    bytes.metadata.emplace("a", "\xff");
    expect_file_error(path, bytes, "not UTF-8");
    TensorFile truth;
    truth.tensors.emplace("m", Tensor::empty(DType::kBool, {1}));
    *static_cast<unsigned char*>(truth.tensors.at("m").view().data) = 7;
    expect_file_error(path, truth, "byte 7 in bool tensor 'm'");
    EXPECT_EQ(directory.entries(), 0U);
}

TEST(Safetensors, ReplacesAFileWhole) {
    const ScratchDirectory directory;
    const auto path = directory / "x.safetensors";
    write_safetensors(path, one_of_each());
    TensorFile next;
    next.tensors.emplace("only", pattern(DType::kInt64, {2}));
    write_safetensors(path, next);
    expect_same(read_safetensors(path), next);
    EXPECT_EQ(directory.entries(), 1U);
}

TEST(Safetensors, AFailedWriteLeavesTheOldFileAndNothingElse) {
    const ScratchDirectory directory;
    const auto path = directory / "x.safetensors";
    write_safetensors(path, one_of_each());
    TensorFile large;
    large.tensors.emplace("large", pattern(DType::kFloat32, {1 << 18}));

    // A limit on file size stands in for a full disk: writes past it fail with EFBIG.
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    expect_file_error(path, large, "File too large");
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    std::signal(SIGXFSZ, handler);

    expect_same(read_safetensors(path), one_of_each());
    EXPECT_EQ(directory.entries(), 1U);
}

}  // namespace
}  // namespace sluice
