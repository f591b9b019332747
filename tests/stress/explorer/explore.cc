#include "tests/stress/explorer/explore.h"

#include "tests/stress/explorer/ledger.h"
#include "tests/stress/explorer/networks.h"

namespace dualpipe::stress {

std::string to_string(const Faults& faults) {
  static constexpr const char* kNames[] = {"cells", "reduction order", "edge order", "deadlock", "slots"};
  std::string text;
  for (const Fault fault : faults) {
    text += (text.empty() ? "" : ", ") + std::string(kNames[static_cast<int>(fault)]);
  }
  return text.empty() ? "sound" : text;
}

Faults explore(const Schedule& schedule) {
  if (!cells_hold(schedule)) {
    return {Fault::kCells};
  }
  const bool ends = all_end(network_of(schedule, PairTakes::kAsTheyCome), Wires::kTagged, 0);
  return ends ? Faults{} : Faults{Fault::kDeadlock};
}

Faults explore(const Program& program, bool defers) {
  Faults faults;
  if (!cells_hold(program, defers)) {
    faults.insert(Fault::kCells);
  }
  if (!mirrors_agree(program)) {
    faults.insert(Fault::kReductionOrder);
  }
  if (!faults.empty()) {
    return faults;
  }
  const Network network = network_of(program);
  const bool in_order = edges_agree(network);
  if (!in_order) {
    faults.insert(Fault::kEdgeOrder);
  }
  if (!all_end(network, Wires::kTagged, 0)) {
    faults.insert(Fault::kDeadlock);
  } else if (in_order && !all_end(network, Wires::kInOrder, program.slots)) {
    faults.insert(Fault::kSlots);
  }
  return faults;
}

}  // namespace dualpipe::stress
