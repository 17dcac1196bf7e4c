// Cubins in files, each with the whole text that it was compiled from.
//
// A file is the cubin (tools read it as one) with a trailer: the key's text, then the sizes of
// both, a checksum over all of it and a magic number. A hash of the key only names the file: what
// comes back was compiled from exactly the text asked for, or nothing comes back.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::cuda {

/// "<32 hexadecimal digits>.cubin"
[[nodiscard]] std::string cubin_file_name(std::string_view key);
[[nodiscard]] std::string encode_cubin(std::string_view cubin, std::string_view key);
/// The cubin of a file; none if the file is cut, damaged, or another key's.
[[nodiscard]] std::optional<std::string> decode_cubin(std::string_view file, std::string_view key);

/// The file of `key` in a folder that its maker answers for (an installed one); none if it is not
/// there or not whole.
[[nodiscard]] std::optional<std::string> read_cubin(const std::filesystem::path& folder,
                                                    std::string_view key);
/// Under its final name the file appears whole or not at all, also beside other writers. False
/// where it cannot be written.
bool write_cubin(const std::filesystem::path& folder, std::string_view key, std::string_view cubin);

/// A user's folder of compiled kernels. It only saves time: whatever is wrong with it, load() finds
/// nothing and store() does nothing.
///
/// Code from it runs on the GPU under this user's name, so nobody else may have put it there: the
/// folder and the files must be this user's own, and others must not be able to replace them.
class DiskCache {
  public:
    /// Created by the first store(). Empty: no cache.
    explicit DiskCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

    [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }
    /// Why the folder is not used; empty: it is.
    [[nodiscard]] std::string problem() const;
    [[nodiscard]] std::optional<std::string> load(std::string_view key) const;
    /// Whether the cubin is in the cache now.
    bool store(std::string_view key, std::string_view cubin) const;

  private:
    std::filesystem::path folder_;
};

}  // namespace sluice::cuda
