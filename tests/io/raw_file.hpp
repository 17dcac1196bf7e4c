// Safetensors files as raw bytes, so that tests can write what the writer would refuse to.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "sluice/safetensors.hpp"

namespace sluice::test {

/// 8 bytes of length, `header`, `data`.
inline std::string raw_file(const std::string& header, const std::string& data = {}) {
    const std::uint64_t length = header.size();
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    return bytes + header + data;
}

/// Parses from a heap block of exactly the file's size: a sanitizer then sees any read past it.
inline TensorFile parse_exactly(const std::string& bytes) {
    const auto block = std::make_unique<std::byte[]>(bytes.size());
    std::memcpy(block.get(), bytes.data(), bytes.size());
    return parse_safetensors(std::span<const std::byte>(block.get(), bytes.size()), "memory");
}

inline std::string read_bytes(const std::filesystem::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}

/// A new directory that is removed with everything in it.
class ScratchDirectory {
  public:
    ScratchDirectory() {
        std::string name = (std::filesystem::temp_directory_path() / "sluice-XXXXXX").string();
        path_ = ::mkdtemp(name.data());
    }
    ~ScratchDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    ScratchDirectory(const ScratchDirectory&) = delete;
    ScratchDirectory& operator=(const ScratchDirectory&) = delete;

    [[nodiscard]] std::filesystem::path operator/(const std::string& name) const {
        return path_ / name;
    }
    [[nodiscard]] std::size_t entries() const {
        return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_),
                                                      std::filesystem::directory_iterator()));
    }

  private:
    std::filesystem::path path_;
};

}  // namespace sluice::test
