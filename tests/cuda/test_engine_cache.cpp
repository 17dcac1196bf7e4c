// Cubins in files: whole or nothing, whatever happens to the folder.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "cuda/engine/cache.hpp"
#include "io/raw_file.hpp"

namespace sluice::cuda {
namespace {

namespace fs = std::filesystem;
using test::read_bytes;
using test::ScratchDirectory;
using test::write_bytes;

const std::string kKey = "options\nsource of a kernel";
const std::string kCubin(
    "\x7f"
    "ELF\0 code",
    10);

/// Runs `f` in a child process; whether it returned true.
template <class F>
bool in_child(F&& f) {
    const pid_t child = fork();
    if (child == 0) _exit(f() ? 0 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(CubinFile, NamesAreHashesOfTheKey) {
    // FNV-1a, 128 bits: the offset basis, and the published value for "foobar".
    EXPECT_EQ(cubin_file_name(""), "6c62272e07bb014262b821756295c58d.cubin");
    EXPECT_EQ(cubin_file_name("foobar"), "343e1662793c64bf6f0d3597ba446f18.cubin");
}

TEST(CubinFile, BeginsWithTheCubinAndGivesItBack) {
    const std::string file = encode_cubin(kCubin, kKey);
    EXPECT_TRUE(file.starts_with(kCubin));
    EXPECT_EQ(decode_cubin(file, kKey), kCubin);
}

TEST(CubinFile, OfAnotherKeyIsRefused) {
    const std::string file = encode_cubin(kCubin, kKey);
    EXPECT_EQ(decode_cubin(file, kKey + "!"), std::nullopt);
    EXPECT_EQ(decode_cubin(file, "Options\nsource of a kernel"), std::nullopt);
}

TEST(CubinFile, CutAnywhereIsRefused) {
    const std::string file = encode_cubin(kCubin, kKey);
    for (std::size_t size = 0; size < file.size(); ++size) {
        EXPECT_EQ(decode_cubin(file.substr(0, size), kKey), std::nullopt) << size;
    }
    EXPECT_EQ(decode_cubin(file + '\0', kKey), std::nullopt);
}

TEST(CubinFile, WithAnyBitFlippedIsRefused) {
    const std::string file = encode_cubin(kCubin, kKey);
    for (std::size_t bit = 0; bit < 8 * file.size(); ++bit) {
        std::string damaged = file;
        damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
        EXPECT_EQ(decode_cubin(damaged, kKey), std::nullopt) << bit;
    }
}

TEST(DiskCache, StoresInFoldersThatItMakesForThisUserOnly) {
    const ScratchDirectory scratch;
    const DiskCache cache(scratch / "a/b");
    EXPECT_EQ(cache.problem(), "");
    EXPECT_EQ(cache.load(kKey), std::nullopt);
    EXPECT_TRUE(cache.store(kKey, kCubin));
    EXPECT_EQ(cache.load(kKey), kCubin);
    EXPECT_EQ(cache.load("another"), std::nullopt);
    for (const char* folder : {"a", "a/b"}) {
        EXPECT_EQ(fs::status(scratch / folder).permissions(), fs::perms::owner_all) << folder;
    }
}

TEST(DiskCache, WithoutAFolderDoesNothing) {
    const DiskCache cache{fs::path()};
    EXPECT_NE(cache.problem(), "");
    EXPECT_FALSE(cache.store(kKey, kCubin));
    EXPECT_EQ(cache.load(kKey), std::nullopt);
}

TEST(DiskCache, IgnoresADamagedFileAndWritesItAnew) {
    const ScratchDirectory scratch;
    const DiskCache cache(scratch / "cache");
    ASSERT_TRUE(cache.store(kKey, kCubin));
    const fs::path path = cache.folder() / cubin_file_name(kKey);
    const std::string other = encode_cubin("other code", "a key of the same name, in theory");
    for (const std::string& bytes : {std::string(), std::string("ELF"), other}) {
        write_bytes(path, bytes);
        EXPECT_EQ(cache.load(kKey), std::nullopt);
        EXPECT_TRUE(cache.store(kKey, kCubin));
        EXPECT_EQ(cache.load(kKey), kCubin);
    }
}

TEST(DiskCache, ReadsOnlyOrdinaryFilesOfThisUser) {
    const ScratchDirectory scratch;
    const DiskCache cache(scratch / "cache");
    ASSERT_TRUE(cache.store(kKey, kCubin));
    const fs::path path = cache.folder() / cubin_file_name(kKey);
    const fs::path elsewhere = scratch / "elsewhere";
    fs::rename(path, elsewhere);
    fs::create_symlink(elsewhere, path);
    EXPECT_EQ(cache.load(kKey), std::nullopt) << "a link";
    fs::remove(path);
    fs::create_directory(path);
    EXPECT_EQ(cache.load(kKey), std::nullopt) << "a folder";
    fs::remove(path);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    EXPECT_EQ(cache.load(kKey), std::nullopt) << "a pipe that nobody writes to";
    EXPECT_TRUE(cache.store(kKey, kCubin));
    EXPECT_EQ(cache.load(kKey), kCubin);
}

TEST(DiskCache, TrustsNoFolderThatOthersCanChange) {
    const ScratchDirectory scratch;
    const DiskCache cache(scratch / "cache");
    ASSERT_TRUE(cache.store(kKey, kCubin));
    for (const mode_t mode : {0777U, 0770U, 0702U}) {
        ASSERT_EQ(chmod(cache.folder().c_str(), mode), 0);
        EXPECT_EQ(cache.problem(), "a folder that others can change");
        EXPECT_EQ(cache.load(kKey), std::nullopt);
        EXPECT_FALSE(cache.store(kKey, kCubin));
    }
    ASSERT_EQ(chmod(cache.folder().c_str(), 01777), 0);
    EXPECT_EQ(cache.load(kKey), kCubin) << "sticky: others cannot replace this user's files";
}

TEST(DiskCache, TrustsNothingOfAnotherUser) {
    if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
    const ScratchDirectory scratch;
    const DiskCache cache(scratch / "cache");
    ASSERT_TRUE(cache.store(kKey, kCubin));
    const fs::path path = cache.folder() / cubin_file_name(kKey);
    ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
    EXPECT_EQ(cache.load(kKey), std::nullopt);
    ASSERT_EQ(chown(cache.folder().c_str(), 65534, 65534), 0);
    EXPECT_EQ(cache.problem(), "a folder of another user");
    EXPECT_FALSE(cache.store(kKey, kCubin));
}

TEST(DiskCache, AReadOnlyFolderIsReadAndNotWritten) {
    const ScratchDirectory scratch;
    const fs::path folder = scratch / "cache";
    ASSERT_EQ(chmod(folder.parent_path().c_str(), 01777), 0);
    EXPECT_TRUE(in_child([&] {
        // Root may write anywhere: be somebody else.
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return false;
        const DiskCache cache(folder);
        if (!cache.store(kKey, kCubin)) return false;
        chmod(folder.c_str(), 0500);
        return cache.load(kKey) == kCubin && !cache.store("another", kCubin) &&
               cache.load("another") == std::nullopt;
    }));
}

TEST(DiskCache, AFullDiskLeavesNothingBehind) {
    const ScratchDirectory scratch;
    const DiskCache cache(scratch / "cache");
    ASSERT_TRUE(cache.store(kKey, kCubin));
    EXPECT_TRUE(in_child([&] {
        const rlimit few_bytes{20, 20};  // writes then fail as they do on a full disk
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &few_bytes);
        return !cache.store(kKey, kCubin + "new") && !cache.store("another", kCubin);
    }));
    EXPECT_EQ(cache.load(kKey), kCubin);
    EXPECT_EQ(std::distance(fs::directory_iterator(cache.folder()), {}), 1);
}

// Processes that write different cubins (as two compilers would) under the same keys: a reader sees
// one of them, whole.
TEST(DiskCache, ConcurrentWritersNeverShowHalfAFile) {
    constexpr int kProcesses = 6, kRounds = 60, kKeys = 3;
    const ScratchDirectory scratch;
    const fs::path folder = scratch / "cache";
    const auto key = [](int i) { return kKey + std::to_string(i); };
    const auto cubin = [](int process) {
        return std::string(40000 + 9000 * static_cast<std::size_t>(process),
                           static_cast<char>('a' + process));
    };
    std::vector<pid_t> children;
    for (int process = 0; process < kProcesses; ++process) {
        const pid_t child = fork();
        if (child == 0) {
            const DiskCache cache(folder);
            bool good = true;
            for (int round = 0; round < kRounds && good; ++round) {
                good = cache.store(key(round % kKeys), cubin(process));
                const auto found = cache.load(key((round + process) % kKeys));
                const int writer = found ? found->at(0) - 'a' : 0;
                good = good && (!found || *found == cubin(writer));
            }
            _exit(good ? 0 : 1);
        }
        children.push_back(child);
    }
    for (const pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        EXPECT_EQ(status, 0);
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), kKeys);
}

TEST(InstalledCubins, AreReadWhoeverOwnsThem) {
    const ScratchDirectory scratch;
    const fs::path folder = scratch / "cubins";
    EXPECT_FALSE(write_cubin(folder, kKey, kCubin));
    fs::create_directory(folder);
    EXPECT_TRUE(write_cubin(folder, kKey, kCubin));
    ASSERT_EQ(chmod(folder.c_str(), 0777), 0);
    EXPECT_EQ(read_cubin(folder, kKey), kCubin);
    EXPECT_EQ(read_cubin(folder, "another"), std::nullopt);
}

}  // namespace
}  // namespace sluice::cuda
