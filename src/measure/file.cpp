#include "measure/file.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "sluice/error.hpp"

namespace sluice::measure {

namespace {

Error file_error(const std::filesystem::path& path, const char* accepted) {
    return {ErrorCode::kFile, path.string(), std::strerror(errno), accepted};
}

}  // namespace

std::string read_text(const std::filesystem::path& path) {
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!file.is_open() || file.bad() || errno == EISDIR) {
        throw file_error(path, "a file that can be read");
    }
    return text;
}

void write_text(const std::filesystem::path& path, std::string_view text) {
    errno = 0;
    std::filesystem::path temporary = path;
    temporary += ".tmp" + std::to_string(getpid());
    std::ofstream file(temporary, std::ios::binary);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    file.close();
    std::error_code renamed;
    if (file) std::filesystem::rename(temporary, path, renamed);
    if (!file || renamed) {
        const Error error = renamed ? Error(ErrorCode::kFile, path.string(), renamed.message(),
                                            "a path that can be written")
                                    : file_error(path, "a path that can be written");
        std::error_code ignored;
        std::filesystem::remove(temporary, ignored);
        throw error;
    }
}

}  // namespace sluice::measure
