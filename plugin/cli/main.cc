#include <fmt/core.h>

#include <new>

#include "plugin/cli/commands.h"

int main(int argc, char** argv) {
  using namespace dualpipe::cli;
  CLI::App app{"Draws, checks and measures pipeline schedules.", "dualpipe"};
  app.set_version_flag("--version", "dualpipe " DUALPIPE_VERSION);
  app.require_subcommand(1);
  int status = kExitOk;
  add_plan(app, status);
  add_draw(app, status);
  add_check(app, status);
  add_schedules(app, status);
  add_claims(app, status);
  add_scale(app, status);
  add_overlap(app, status);
  add_profile(app, status);
  add_ab(app, status);
  add_postmortem(app, status);
  add_demo(app, status);
  try {
    app.parse(argc, argv);
    return status;
  } catch (const CLI::Success& request) {
    return app.exit(request);  // --help or --version.
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "dualpipe: {}; see dualpipe --help\n", error.what());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "dualpipe: out of memory; fewer ranks or micro-batches need less\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "dualpipe: {}\n", error.what());
  }
  return kExitUsage;
}
