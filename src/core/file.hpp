// Files, whole or not at all.
#pragma once

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace sluice {

struct FileCloser {
    void operator()(std::FILE* file) const { std::fclose(file); }
};
using FileHandle = std::unique_ptr<std::FILE, FileCloser>;

/// What the system calls an errno.
[[nodiscard]] std::string describe_errno(int error_number);

/// A file that takes its final name only when it is whole, and vanishes otherwise: it is written
/// under a temporary name in the same folder. Every failure is an Error(kFile) that names `path`.
class PendingFile {
  public:
    /// Refuses a `path` that is there and no regular file: the renaming would replace a device or a
    /// pipe. A link stays one; the file that it leads to is replaced.
    explicit PendingFile(const std::filesystem::path& path);
    ~PendingFile();
    PendingFile(const PendingFile&) = delete;
    PendingFile& operator=(const PendingFile&) = delete;

    void write(const void* data, std::size_t bytes);
    void commit();

  private:
    [[noreturn]] void fail(const std::string& problem) const;

    std::filesystem::path path_;    // as the caller wrote it
    std::filesystem::path target_;  // past links
    std::string temporary_;
    FileHandle handle_;
    bool committed_ = false;
};

/// Throws Error(kFile) where a PendingFile would: asked before a long computation whose result is
/// to be written. Leaves nothing behind.
void require_writable(const std::filesystem::path& path);

/// Throws Error(kFile) that names the path.
[[nodiscard]] std::string read_text(const std::filesystem::path& path);
/// By a PendingFile.
void write_text(const std::filesystem::path& path, std::string_view text);

}  // namespace sluice
