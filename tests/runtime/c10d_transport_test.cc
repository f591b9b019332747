#include "plugin/runtime/c10d_transport.h"

#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "plugin/schedule/error.h"
#include "tests/runtime/transport_tools.h"
#include "tests/support/edge_groups.h"
#include "tests/support/gloo_group.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

TEST(C10dTransport, UsesOneGroupPerDirectedEdgeAndChannel) {
  run_gloo_ranks(3, [](Rank& rank) {
    std::vector<std::string> asked;
    std::vector<Link> mine;
    C10dTransportOptions options;
    options.edges = {{0, 1}, {1, 0}, {1, 2}, {2, 1}};
    options.mirror_edges = {{0, 2}, {2, 0}};
    options.make_edge_groups = [&](const auto& store, int index, const std::vector<Link>& links) {
      for (const Link& link : links) {
        asked.push_back(link.to_string());
      }
      auto groups = make_gloo_edge_groups(store, index, links, milliseconds(30000));
      for (const EdgeGroup& group : groups) {
        mine.push_back(group.link);
      }
      return groups;
    };
    const auto transport = make_c10d_transport(rank.group, options);
    EXPECT_THAT(asked,
                ElementsAre("0 to 1 (channel 0)", "1 to 0 (channel 0)", "1 to 2 (channel 0)", "2 to 1 (channel 0)",
                            "0 to 2 (channel 1)", "0 to 2 (channel 2)", "2 to 0 (channel 1)", "2 to 0 (channel 2)"));
    EXPECT_EQ(mine.size(), rank.index == 1 ? 4u : 6u);
    if (rank.index == 1) {
      EXPECT_THROW(transport->send(0, kMirror, {number(0)}), std::logic_error);
    }
    EXPECT_EQ(transport->all_gather(std::to_string(rank.index)).size(), 3u);
  });
}

TEST(C10dTransport, RefusesAGroupThatItCannotUse) {
  const auto bare = c10::make_intrusive<c10d::ProcessGroup>(0, 1);
  try {
    make_c10d_transport(bare);
    FAIL() << "a group without a backend was taken";
  } catch (const ScheduleError& error) {
    EXPECT_STREQ(error.what(),
                 "[process_group] the group needs a gloo or nccl backend, got none; ProcessGroup::setBackend or "
                 "init_process_group(backend=\"gloo\") gives it one");
  }
}

TEST(C10dTransport, SaysThatEdgeGroupsNeedAStore) {
  run_gloo_ranks(1, [](Rank& rank) {
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(0, 1);
    group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, rank.group->getBackend(at::kCPU));
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    try {
      make_edge_transport(group, milliseconds(1000));
      FAIL() << "a group without a store was taken";
    } catch (const ScheduleError& error) {
      EXPECT_STREQ(error.what(),
                   "[process_group] an nccl group needs the store that it was made with, got a group without one; "
                   "c10d::ProcessGroup(store, rank, size) keeps it");
    }
  });
}

class OtherBackend : public c10d::Backend {
 public:
  OtherBackend() : c10d::Backend(0, 1) {}
  const std::string getBackendName() const override { return "mpi"; }
};

TEST(C10dTransport, RefusesAnyOtherBackendByName) {
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(0, 1);
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, c10::make_intrusive<OtherBackend>());
  try {
    make_c10d_transport(group);
    FAIL() << "mpi was taken";
  } catch (const ScheduleError& error) {
    EXPECT_STREQ(error.what(),
                 "[process_group] the group's backend must be gloo or nccl, got mpi; "
                 "init_process_group(backend=\"gloo\") works on the CPU");
  }
}

TEST(C10dTransport, SaysWhereNcclIsNotBuiltIn) {
  std::string message;
  try {
    make_nccl_edge_groups(nullptr, 0, {}, milliseconds(1000), 0);
  } catch (const ScheduleError& error) {
    message = error.what();
  }
  EXPECT_EQ(message, nccl_is_built_in()
                         ? ""
                         : "[process_group] NCCL is not built in: configure with -DDUALPIPE_WITH_CUDA=ON "
                           "(preset cuda; of the Python package: pip install --no-build-isolation . "
                           "-C cmake.define.DUALPIPE_WITH_CUDA=ON), or use a gloo group");
}

// The pipeline's first message is the very first communication on a group of 4 of the 6 ranks; the other two go their
// way.
TEST(C10dTransport, FieldReport17FirstMessageOnASubGroup) {
  for (int start = 0; start < 30; ++start) {
    run_gloo_ranks(6, [&](Rank& rank) {
      if (rank.index == 0 || rank.index == 3) {
        return;
      }
      const int index = rank.index < 3 ? rank.index - 1 : rank.index - 2;
      const auto store = c10::make_intrusive<c10d::PrefixStore>("sub", rank.store);
      const auto transport = make_c10d_transport(make_gloo_group(store, index, 4, milliseconds(30000)));
      at::Tensor value = number(start);
      if (index > 0) {
        transport->receive(index - 1, kPipeline, {value})->wait();
        value += 1;
      }
      if (index < 3) {
        transport->send(index + 1, kPipeline, {value})->wait();
      } else {
        EXPECT_TRUE(value.equal(number(start + 3))) << value;
      }
    });
  }
}

}  // namespace
}  // namespace dualpipe
