// Proves by the explorer (tests/stress/explorer/network.h says why one run is a proof) that the named schedules end
// under tagged rendezvous and over in-order channels with k >= 2 slots, and that a single slot is a deadlock exactly
// where least_slots() says so. Prints a JSON row per claim; exits with 1 where one is missed.
#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "plugin/analysis/validate.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/registry.h"
#include "tests/stress/explorer/explore.h"
#include "tests/stress/explorer/ledger.h"
#include "tests/stress/explorer/networks.h"
#include "tests/stress/row.h"

namespace dualpipe::stress {
namespace {

struct Limits {
  int ranks = 32;
  int more = 64;  // M goes from 2P to 2P + more.
};

// More slots than any edge uses.
constexpr int kManySlots = 1 << 20;

struct Tally {
  long schedules = 0;
  long proven = 0;
  long single_slot = 0;  // Schedules that end with one slot.
  long single_slot_deadlocks = 0;
  long single_slot_agreed = 0;  // Where least_slots() and the explorer say the same.
  std::string first_failure;

  void fail(const std::string& what) {
    if (first_failure.empty()) {
      first_failure = what;
    }
  }
};

std::string name_of(const Schedule& schedule) {
  return schedule.name + " P=" + std::to_string(schedule.placement.ranks()) +
         " M=" + std::to_string(schedule.num_microbatches);
}

// The plan itself: with receives posted long before, more slots never hurt, so k = 2 stands for all above.
bool plan_ends(const Schedule& schedule) {
  const Network network = network_of(schedule, PairTakes::kAsTheyCome);
  return all_end(network, Wires::kTagged, 0) && all_end(network, Wires::kInOrder, 2);
}

// The program depends on k, which decides where receives stand: lowered and run for 2, for 3 and for so many that no
// receive ever waits for a slot. In between nothing new can happen: where two slots are enough, no receive of a program
// with more stands ahead of a free slot, so slots never bind and the tagged run is the run.
bool programs_end(const Schedule& schedule) {
  for (const int slots : {2, 3, kManySlots}) {
    const Program program = lower(schedule, {.slots = slots});
    const Network network = network_of(program);
    if (!cells_hold(program, false) || !edges_agree(network) || !all_end(network, Wires::kTagged, 0) ||
        !all_end(network, Wires::kInOrder, slots)) {
      return false;
    }
  }
  return true;
}

void prove(const Schedule& schedule, Tally& tally) {
  ++tally.schedules;
  if (cells_hold(schedule) && plan_ends(schedule) && programs_end(schedule)) {
    ++tally.proven;
  } else {
    tally.fail(name_of(schedule) + " does not end with k >= 2");
  }
  const bool ends = all_end(network_of(schedule, PairTakes::kForwardFirst), Wires::kInOrder, 1);
  ++(ends ? tally.single_slot : tally.single_slot_deadlocks);
  const Program program = lower(schedule, {.slots = 1});
  const bool program_ends = explore(program).empty();
  if (ends == (least_slots(schedule) == 1) && program_ends == validate(program).empty() && (ends || !program_ends)) {
    ++tally.single_slot_agreed;
  } else {
    tally.fail(name_of(schedule) + " with one slot: explorer " + (ends ? "ends" : "deadlocks") + ", its program " +
               (program_ends ? "ends" : "deadlocks") + ", least_slots() = " + std::to_string(least_slots(schedule)));
  }
}

Tally prove_all(const std::string& name, const Limits& limits) {
  Tally tally;
  const Registry registry = builtin_registry();
  for (int ranks = 1; ranks <= limits.ranks; ++ranks) {
    for (int count = 2 * ranks; count <= 2 * ranks + limits.more; ++count) {
      try {
        prove(registry.make(name, {ranks, count, 2}), tally);
      } catch (const ScheduleError&) {
        continue;  // The schedule's own rule: an odd P or M, M no multiple of P.
      }
    }
  }
  return tally;
}

std::map<std::string, Tally> prove_names(const std::vector<std::string>& names, const Limits& limits) {
  std::map<std::string, Tally> tallies;
  for (const std::string& name : names) {
    std::cerr << name << "\n";
    tallies[name] = prove_all(name, limits);
  }
  return tallies;
}

void report(const std::map<std::string, Tally>& tallies, const Limits& limits, bool& reached) {
  const std::string range =
      "every P <= " + std::to_string(limits.ranks) + ", M = 2P..2P+" + std::to_string(limits.more);
  for (const auto& [name, tally] : tallies) {
    const ResultRow ends{name + " ends, tagged and in order with k >= 2 slots", range + ", all",
                         std::to_string(tally.proven) + " of " + std::to_string(tally.schedules) + " proven", "",
                         tally.schedules > 0 && tally.proven == tally.schedules};
    const ResultRow single{name + " with k = 1, explorer and least_slots() agree", range + ", all",
                           std::to_string(tally.single_slot_agreed) + " of " + std::to_string(tally.schedules) +
                               " agree, " + std::to_string(tally.single_slot_deadlocks) + " deadlock",
                           "", tally.schedules > 0 && tally.single_slot_agreed == tally.schedules};
    print(std::cout, ends);
    print(std::cout, single);
    reached = reached && ends.reached && single.reached;
    if (!tally.first_failure.empty()) {
      std::cerr << tally.first_failure << "\n";
    }
  }
}

}  // namespace
}  // namespace dualpipe::stress

int main(int argc, char** argv) {
  using namespace dualpipe::stress;
  CLI::App app("Schedules proven free of deadlock");
  Limits limits;
  app.add_option("--max-ranks", limits.ranks, "P up to this")->check(CLI::Range(1, 64));
  app.add_option("--more", limits.more, "M up to 2P plus this")->check(CLI::Range(0, 1024));
  CLI11_PARSE(app, argc, argv);
  const auto tallies = prove_names({"1f1b", "interleaved_1f1b", "zb1p", "dualpipe", "dualpipev"}, limits);
  bool reached = true;
  report(tallies, limits, reached);
  return reached ? 0 : 1;
}
