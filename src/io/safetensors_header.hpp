// The header of a safetensors file: JSON of one fixed form, checked while it is parsed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/tensor.hpp"

namespace sluice {

/// The format's own limit on a header.
inline constexpr std::int64_t kMaxHeaderBytes = 100'000'000;

struct TensorEntry {
    std::string name;
    DType dtype = DType::kFloat32;
    std::vector<std::int64_t> shape;
    std::int64_t begin = 0, end = 0;  // bytes, counted from the end of the header
};

struct SafetensorsHeader {
    std::vector<TensorEntry> tensors;  // in the order of their bytes
    std::map<std::string, std::string> metadata;
};

/// Throws Error(kFile) unless the entries cover `data_bytes` bytes one after the other, each with
/// as many bytes as its shape and dtype say.
[[nodiscard]] SafetensorsHeader parse_header(std::string_view json, std::int64_t data_bytes,
                                             const std::string& file);

/// The header's JSON, padded with spaces to a multiple of 8 bytes.
[[nodiscard]] std::string format_header(const SafetensorsHeader& header, const std::string& file);

/// Bytes of a tensor, or -1 where its extents' product (empty extents counted as one, as strides
/// do) leaves int64.
[[nodiscard]] std::int64_t tensor_bytes(DType dtype, const std::vector<std::int64_t>& shape);

[[noreturn]] void refuse_file(const std::string& file, std::string value, std::string accepted);

/// A name of any bytes and length, printable: quoted, escaped and cut.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace sluice
