// The safetensors file format (https://github.com/huggingface/safetensors): 8 bytes of header
// length, a JSON header, raw little-endian tensors.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "sluice/tensor.hpp"

namespace sluice {

struct TensorFile {
    std::map<std::string, Tensor> tensors;
    std::map<std::string, std::string> metadata;  // "__metadata__"
};

/// Reads a whole file: F64, F32, BF16, F16, I64, I32, BOOL. Throws Error(kFile) that names the file
/// and what is wrong with it (truncated, overlapping or out-of-range offsets, sizes that do not
/// match shape and dtype, unknown dtype, header over 100 MB or not JSON, duplicate names); never
/// reads outside the file.
[[nodiscard]] TensorFile read_safetensors(const std::filesystem::path& path);
/// The same from memory.
[[nodiscard]] TensorFile parse_safetensors(std::span<const std::byte> bytes,
                                           const std::string& name);
/// Writes to a temporary file beside `path` and renames it: the file appears whole or not at all.
void write_safetensors(const std::filesystem::path& path, const TensorFile& file);

}  // namespace sluice
