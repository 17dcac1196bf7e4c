// Text files, whole or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace sluice::measure {

/// Throws Error(kFile) that names the path.
[[nodiscard]] std::string read_text(const std::filesystem::path& path);
/// Writes a temporary file beside `path` and renames it. Throws Error(kFile) that names the path.
void write_text(const std::filesystem::path& path, std::string_view text);

}  // namespace sluice::measure
