// Runs the command `sluice` as its user does, without a shell.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include <string>
#include <vector>

#include "io/raw_file.hpp"

extern char** environ;

namespace sluice::test {

struct Outcome {
    int status = -1;  // exit status; -1: it did not exit by itself
    std::string out;
    std::string err;
};

/// `words`: the program's path and its arguments. Standard output goes to `out_path` if there is
/// one.
inline Outcome run_program(std::vector<std::string> words, const std::string& out_path = {}) {
    const ScratchDirectory directory;
    const std::string out = out_path.empty() ? (directory / "out").string() : out_path;
    const std::string err = (directory / "err").string();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), kFlags, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), kFlags, 0600);

    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);

    Outcome outcome;
    pid_t child = 0;
    const int failed = posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) return outcome;
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status)) outcome.status = WEXITSTATUS(status);
    if (out_path.empty()) outcome.out = read_bytes(out);
    outcome.err = read_bytes(err);
    return outcome;
}

inline std::string sluice_path() { return SLUICE_BINARY_DIR "/bin/sluice"; }

inline Outcome run_sluice(const std::vector<std::string>& arguments,
                          const std::string& out_path = {}) {
    std::vector<std::string> words = {sluice_path()};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run_program(words, out_path);
}

}  // namespace sluice::test
