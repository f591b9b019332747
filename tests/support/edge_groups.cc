#include "tests/support/edge_groups.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "tests/support/gloo_group.h"

namespace dualpipe {

std::vector<EdgeGroup> make_gloo_edge_groups(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                             const std::vector<Link>& links, std::chrono::milliseconds timeout) {
  std::vector<EdgeGroup> groups;
  for (const Link& link : links) {
    if (rank == link.from || rank == link.to) {
      const auto prefixed = c10::make_intrusive<c10d::PrefixStore>(link.to_string(), store);
      const auto group = make_gloo_group(prefixed, rank == link.from ? 0 : 1, 2, timeout);
      groups.push_back({link, group->getBackend(at::kCPU)});
    }
  }
  return groups;
}

std::shared_ptr<Transport> make_edge_transport(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                               std::chrono::milliseconds timeout) {
  C10dTransportOptions options;
  options.timeout = timeout;
  for (int from = 0; from < group->getSize(); ++from) {
    for (int to = 0; to < group->getSize(); ++to) {
      if (from != to) {
        options.edges.emplace_back(from, to);
        options.mirror_edges.emplace_back(from, to);
      }
    }
  }
  options.make_edge_groups = [timeout](const auto& store, int rank, const std::vector<Link>& links) {
    return make_gloo_edge_groups(store, rank, links, timeout);
  };
  return make_c10d_transport(group, options);
}

}  // namespace dualpipe
