// sluice: run, verify, bench, report, info.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>

#include "cli/commands.hpp"
#include "cli/failure.hpp"

namespace {

using sluice::cli::Context;
using sluice::cli::json_text;

/// Without fmt, which throws where a stream cannot be written.
void put(const std::string& text, std::FILE* stream) { std::fputs(text.c_str(), stream); }

/// One line on standard error, or an object on standard output with --json.
int refuse(const Context& context, const std::exception& problem) {
    if (context.json) {
        put(json_text(sluice::cli::failure_json(problem)), stdout);
    } else {
        put("sluice: " + sluice::cli::failure_text(problem) + "\n", stderr);
    }
    return 2;
}

/// A command line that could not be parsed, or --help.
int refuse_usage(const CLI::App& program, const Context& context, const CLI::ParseError& problem) {
    const bool help = problem.get_exit_code() == 0;
    if (help || !context.json) return program.exit(problem) == 0 ? 0 : 2;
    nlohmann::ordered_json object = sluice::cli::failure_json(problem);
    object["code"] = "usage";
    put(json_text(object), stdout);
    return 2;
}

int parse_and_run(int argc, char** argv) {
    Context context;
    // Known before parsing: errors of the parser are JSON too.
    context.json = std::any_of(argv, argv + argc,
                               [](const char* word) { return std::string_view(word) == "--json"; });
    CLI::App program{"Recurrent-state (\"linear\") attention: run it, verify it, measure it."};
    program.name("sluice");
    program.require_subcommand(1);
    program.set_version_flag("--version", SLUICE_VERSION, "Print the version and exit");
    program.footer(
        "sluice COMMAND --help explains a command.\n"
        "Exit status: 0 success, 1 a check failed, 2 refused input or usage, or output lost.");
    sluice::cli::add_run(program, context);
    sluice::cli::add_verify(program, context);
    sluice::cli::add_bench(program, context);
    sluice::cli::add_report(program, context);
    sluice::cli::add_info(program, context);
    try {
        program.parse(argc, argv);
    } catch (const CLI::ParseError& problem) {
        return refuse_usage(program, context, problem);
    } catch (const std::exception& problem) {
        return refuse(context, problem);
    }
    return context.status;
}

}  // namespace

int main(int argc, char** argv) {
    const int status = parse_and_run(argc, argv);
    const bool flushed = std::fflush(stdout) == 0;
    if (flushed && std::ferror(stdout) == 0) return status;
    const std::string reason = flushed ? "" : std::string(": ") + std::strerror(errno);
    put("sluice: standard output could not be written" + reason + "\n", stderr);
    return 2;
}
