#include "examples/pretrain_gpt/start.h"

#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "examples/pretrain_gpt/failures/last_words.h"
#include "examples/pretrain_gpt/failures/roll_call.h"

namespace pretrain_gpt {
namespace {

using namespace std::chrono_literals;

constexpr const char* kLine = "lifeline";
constexpr const char* kComplete = "roll/complete";
constexpr std::chrono::milliseconds kConnectPatience{3000};

// "<port> <greeting> <host>"
std::unique_ptr<Lifeline> host_lifeline(const Environment& environment, const ProcessIdentity& process, Board& board) {
  const std::string greeting = fmt::format("pretrain_gpt-{}-{}", process.pid, process.started);
  auto hub = std::make_unique<LifelineHub>(environment.world_size, is_on_one_machine(environment), greeting);
  board.set(kLine, fmt::format("{} {} {}", hub->port(), greeting, process.host));
  return hub;
}

// Null while rank 0 has not said where, and where no way leads there: then the beats of the watch have to do.
std::unique_ptr<Lifeline> find_lifeline(const Environment& environment, Board& board, bool& tried) {
  const std::optional<std::string> where = tried ? std::nullopt : board.get(kLine);
  if (!where) {
    return nullptr;
  }
  tried = true;
  std::istringstream text(*where);
  int port = 0;
  std::string greeting, host;
  text >> port >> greeting >> host;
  std::vector<std::string> hosts{environment.master_address, host};
  if (is_on_one_machine(environment)) {
    hosts = {"127.0.0.1"};
  }
  try {
    return connect_lifeline(hosts, port, environment.rank, greeting, kConnectPatience);
  } catch (const std::exception& error) {
    fmt::print(stderr, "[rank {}] note: {}: {}; the end of a process is noticed later\n", environment.rank,
               "no line to rank 0", error.what());
    return nullptr;
  }
}

// A process that is no part of the run must not take part in its watch; once the run is complete it leaves by itself.
void enrol_or_leave(Board& board, const Enrolment& mine, const OpenBoard& boards) {
  try {
    enrol(board, mine);
  } catch (const RunError& error) {
    if (!board.get(kComplete)) {
      report_from_outside(boards, {mine.rank, error.code(), "", error.what()});
    }
    exit_with_error(mine.rank, error.what(), error.code());
  }
}

std::uint64_t hash_of(const std::string& text) {  // FNV-1a.
  std::uint64_t hash = 14695981039346656037U;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  }
  return hash;
}

}  // namespace

void meet(const Environment& environment, const Rendezvous& rendezvous, std::chrono::milliseconds patience,
          FailureWatch& watch) {
  if (environment.world_size == 1) {
    return;
  }
  const OpenBoard boards = rendezvous.boards();
  const std::unique_ptr<Board> board = boards(patience + 10s);
  const Enrolment mine{environment.rank, environment.world_size, this_process()};
  std::unique_ptr<Lifeline> hub = environment.rank == 0 ? host_lifeline(environment, mine.process, *board) : nullptr;
  enrol_or_leave(*board, mine, boards);
  watch.join({boards, rendezvous.is_host(), !environment.launcher_hosts_store, std::move(hub), {}});
  bool tried = environment.rank == 0;
  const auto attach = [&] { watch.attach(find_lifeline(environment, *board, tried)); };
  const auto processes = wait_for_all(*board, mine, patience, [&] {
    attach();
    std::this_thread::sleep_for(50ms);
  });
  attach();
  board->set(kComplete, "");
  if (!environment.launcher_hosts_store) {
    watch.set_host(processes.front());
  }
}

KeyValues with_versions(KeyValues known) {
  known.emplace_back("the version of pretrain_gpt", PRETRAIN_GPT_VERSION);
  known.emplace_back("the version of LibTorch", TORCH_VERSION);
  return known;
}

void compare(const KeyValues& mine, const Environment& environment, c10d::Store& store) {
  const std::string text = to_text(mine);
  const auto gather = [&](const std::string& key, const std::string& value) {
    return gather_texts(store, key, environment.rank, environment.world_size, value);
  };
  const std::vector<std::string> hashes = gather("digest", fmt::format("{:016x}", hash_of(text)));
  if (std::all_of(hashes.begin(), hashes.end(), [&](const std::string& hash) { return hash == hashes.front(); })) {
    return;
  }
  std::vector<KeyValues> by_rank;
  for (const std::string& other : gather("config", text)) {
    by_rank.push_back(from_text(other));
  }
  check_agreement(by_rank);
}

void report_bad_environment(const std::exception& mistake) {
  if (const auto place = read_meeting_place(process_variable)) {
    report_from_outside(boards_at(*place), {{}, exit_code_of(mistake), "", mistake.what()});
  }
}

}  // namespace pretrain_gpt
