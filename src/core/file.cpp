#include "core/file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>

#include "sluice/error.hpp"

namespace sluice {

std::string describe_errno(int error_number) {
    return std::generic_category().message(error_number);
}

PendingFile::PendingFile(const std::filesystem::path& path) : path_(path), target_(path) {
    std::error_code problem;
    const std::filesystem::file_status status = std::filesystem::status(path, problem);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
        throw Error(ErrorCode::kFile, path.string(), "something that is not a file",
                    "a file, new or to be replaced");
    }
    if (std::filesystem::is_symlink(std::filesystem::symlink_status(path, problem))) {
        target_ = std::filesystem::canonical(path, problem);
        if (problem) fail(problem.message());
    }
    static std::atomic<unsigned> counter{0};
    // "x" refuses a name that exists: another process's file is never written to.
    do {
        temporary_ = target_.string() + fmt::format(".tmp{}-{}", ::getpid(), counter++);
        handle_.reset(std::fopen(temporary_.c_str(), "wbx"));
    } while (!handle_ && errno == EEXIST);
    if (!handle_) fail(describe_errno(errno));
}

PendingFile::~PendingFile() {
    if (!committed_) std::remove(temporary_.c_str());
}

void PendingFile::write(const void* data, std::size_t bytes) {
    if (bytes > 0 && std::fwrite(data, 1, bytes, handle_.get()) != bytes) {
        fail(describe_errno(errno));
    }
}

void PendingFile::commit() {
    if (std::fclose(handle_.release()) != 0) fail(describe_errno(errno));
    if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail(describe_errno(errno));
    committed_ = true;
}

void PendingFile::fail(const std::string& problem) const {
    throw Error(ErrorCode::kFile, path_.string(), problem, "a path that can be written");
}

void require_writable(const std::filesystem::path& path) { const PendingFile probe(path); }

std::string read_text(const std::filesystem::path& path) {
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!file.is_open() || file.bad() || errno == EISDIR) {
        throw Error(ErrorCode::kFile, path.string(), describe_errno(errno),
                    "a file that can be read");
    }
    return text;
}

void write_text(const std::filesystem::path& path, std::string_view text) {
    PendingFile file(path);
    file.write(text.data(), text.size());
    file.commit();
}

}  // namespace sluice
