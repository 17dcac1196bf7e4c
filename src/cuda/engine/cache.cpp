#include "cuda/engine/cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace sluice::cuda {

namespace {

namespace fs = std::filesystem;

constexpr std::array<char, 8> kMagic = {'S', 'L', 'C', 'U', 'B', 'I', 'N', '1'};
constexpr std::int64_t kMaxFileBytes = std::int64_t{1} << 28;

struct Footer {
    std::uint64_t cubin_bytes = 0;
    std::uint64_t key_bytes = 0;
    std::array<std::uint64_t, 2> checksum{};  // of the cubin and the key
    std::array<char, 8> magic = kMagic;
};

/// FNV-1a of 128 bits.
class Hash {
  public:
    Hash& operator<<(std::string_view bytes) {
        for (const char c : bytes) state_ = (state_ ^ static_cast<unsigned char>(c)) * kPrime;
        return *this;
    }
    [[nodiscard]] std::array<std::uint64_t, 2> words() const {
        return {static_cast<std::uint64_t>(state_ >> 64), static_cast<std::uint64_t>(state_)};
    }

  private:
    __extension__ using Word = unsigned __int128;
    static constexpr Word kPrime = (Word{1} << 88) + 0x13b;
    Word state_ = (Word{0x6c62272e07bb0142} << 64) + 0x62b821756295c58d;
};

class FileHandle {
  public:
    explicit FileHandle(int descriptor) : descriptor_(descriptor) {}
    ~FileHandle() {
        if (descriptor_ >= 0) ::close(descriptor_);
    }
    FileHandle(const FileHandle&) = delete;
    FileHandle& operator=(const FileHandle&) = delete;

    [[nodiscard]] bool is_open() const { return descriptor_ >= 0; }
    [[nodiscard]] bool read(char* out, std::size_t bytes) const {
        return transfer(
            bytes, [&](std::size_t done) { return ::read(descriptor_, out + done, bytes - done); });
    }
    [[nodiscard]] bool write(std::string_view bytes) const {
        return transfer(bytes.size(), [&](std::size_t done) {
            return ::write(descriptor_, bytes.data() + done, bytes.size() - done);
        });
    }
    [[nodiscard]] bool stat(struct stat& status) const {
        return ::fstat(descriptor_, &status) == 0;
    }
    /// Closing may be what reports that a write failed.
    [[nodiscard]] bool close() { return ::close(std::exchange(descriptor_, -1)) == 0; }

  private:
    template <class Step>
    static bool transfer(std::size_t bytes, const Step& step) {
        for (std::size_t done = 0; done < bytes;) {
            const ssize_t moved = step(done);
            if (moved > 0) {
                done += static_cast<std::size_t>(moved);
            } else if (moved == 0 || errno != EINTR) {
                return false;
            }
        }
        return true;
    }

    int descriptor_;
};

std::optional<std::string> read_file(const fs::path& path, bool must_be_own) {
    const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (must_be_own ? O_NOFOLLOW : 0);
    const FileHandle file(::open(path.c_str(), flags));
    struct stat status {};
    if (!file.is_open() || !file.stat(status)) return {};
    if (!S_ISREG(status.st_mode) || status.st_size > kMaxFileBytes) return {};
    if (must_be_own && status.st_uid != ::geteuid()) return {};
    std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
    if (!file.read(bytes.data(), bytes.size())) return {};
    return bytes;
}

std::optional<std::string> read_entry(const fs::path& folder, std::string_view key,
                                      bool must_be_own) {
    const auto file = read_file(folder / cubin_file_name(key), must_be_own);
    return file ? decode_cubin(*file, key) : std::nullopt;
}

/// Folders that are missing are made for this user only, as the XDG specification asks.
void create_folders(const fs::path& folder) {
    fs::path so_far;
    for (const fs::path& part : folder) {
        so_far /= part;
        ::mkdir(so_far.c_str(), 0700);
    }
}

}  // namespace

std::string cubin_file_name(std::string_view key) {
    const auto words = (Hash() << key).words();
    return fmt::format("{:016x}{:016x}.cubin", words[0], words[1]);
}

std::string encode_cubin(std::string_view cubin, std::string_view key) {
    Footer footer;
    footer.cubin_bytes = cubin.size();
    footer.key_bytes = key.size();
    footer.checksum = (Hash() << cubin << key).words();
    std::string file;
    file.reserve(cubin.size() + key.size() + sizeof footer);
    file.append(cubin).append(key).append(reinterpret_cast<const char*>(&footer), sizeof footer);
    return file;
}

std::optional<std::string> decode_cubin(std::string_view file, std::string_view key) {
    Footer footer;
    if (file.size() < sizeof footer) return {};
    const std::string_view content = file.substr(0, file.size() - sizeof footer);
    std::memcpy(&footer, file.data() + content.size(), sizeof footer);
    if (footer.magic != kMagic || footer.key_bytes != key.size() ||
        footer.cubin_bytes > content.size() ||
        content.size() - footer.cubin_bytes != footer.key_bytes) {
        return {};
    }
    const std::string_view cubin = content.substr(0, footer.cubin_bytes);
    if (content.substr(cubin.size()) != key) return {};
    if (footer.checksum != (Hash() << cubin << key).words()) return {};
    return std::string(cubin);
}

std::optional<std::string> read_cubin(const fs::path& folder, std::string_view key) {
    return read_entry(folder, key, false);
}

bool write_cubin(const fs::path& folder, std::string_view key, std::string_view cubin) {
    const fs::path path = folder / cubin_file_name(key);
    std::string temporary = path.string() + ".XXXXXX";
    FileHandle file(::mkostemp(temporary.data(), O_CLOEXEC));
    if (!file.is_open()) return false;
    const bool written = file.write(encode_cubin(cubin, key));
    if (file.close() && written && ::rename(temporary.c_str(), path.c_str()) == 0) return true;
    ::unlink(temporary.c_str());
    return false;
}

std::string DiskCache::problem() const {
    if (folder_.empty()) return "no folder (SLUICE_CACHE_DIR is empty, or HOME is not set)";
    struct stat status {};
    if (::stat(folder_.c_str(), &status) != 0) {
        return errno == ENOENT ? std::string() : std::string(std::strerror(errno));
    }
    if (!S_ISDIR(status.st_mode)) return "not a folder";
    if (status.st_uid != ::geteuid()) return "a folder of another user";
    const bool shared = (status.st_mode & (S_IWGRP | S_IWOTH)) != 0;
    if (shared && (status.st_mode & S_ISVTX) == 0) return "a folder that others can change";
    return {};
}

std::optional<std::string> DiskCache::load(std::string_view key) const {
    return problem().empty() ? read_entry(folder_, key, true) : std::nullopt;
}

bool DiskCache::store(std::string_view key, std::string_view cubin) const {
    if (!problem().empty()) return false;
    create_folders(folder_);
    // Looked at again: somebody else may have made it.
    return problem().empty() && write_cubin(folder_, key, cubin);
}

}  // namespace sluice::cuda
