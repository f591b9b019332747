// Sums over groups of any size, without a schedule around them.
#include "plugin/runtime/replica_reduction.h"

#include <gmock/gmock.h>
#include <torch/types.h>

#include <mutex>
#include <thread>

#include "plugin/schedule/error.h"
#include "tests/runtime/parameter_stage.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

using testing::HasSubstr;

at::Tensor random(int seed, at::IntArrayRef sizes, at::ScalarType dtype) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble)).to(dtype);
}

Gradients gradients_of(const Stages& stages, const std::map<std::string, at::Tensor>& main_grads = {}) {
  return Gradients(collect_parameters(stages, {0, 1}, main_grads), /*set_aside=*/true);
}

// One group of all ranks for all parameters.
std::shared_ptr<const ReplicaLayout> layout_of(Rank& rank, const Gradients& gradients, std::vector<int> order = {0, 1},
                                               std::int64_t bucket_bytes = 1 << 20) {
  LayoutOptions options{std::move(order), bucket_bytes, std::to_string(rank.index), std::chrono::seconds(20), {}};
  return std::make_shared<ReplicaLayout>(agree_on_layout({{rank.group, {}}}, gradients.parameters(), options));
}

struct Case {
  std::string name;
  at::ScalarType dtype;
  std::optional<at::ScalarType> main_grad;  // Of the weight alone.
  double tolerance;
  bool shard = false;
};

class ReplicaReductionOf : public testing::TestWithParam<Case> {};

constexpr int kRanks = 3;
constexpr int kSteps = 2;

at::Tensor weight_gradient(const Case& row, int step, int rank) { return random(100 * step + rank, {5, 3}, row.dtype); }
at::Tensor bias_gradient(const Case& row, int step, int rank) { return random(100 * step + rank + 50, {4}, row.dtype); }

TensorList train(const Case& row, Rank& rank) {
  const at::Tensor weight = trained(at::ones({5, 3}, row.dtype));
  const at::Tensor bias = trained(at::ones({4}, row.dtype));
  std::map<std::string, at::Tensor> main_grads;
  if (row.main_grad) main_grads["weight"] = at::zeros({5, 3}, *row.main_grad);
  Gradients gradients = gradients_of({stage_of(0, {{"weight", weight}, {"bias", bias}})}, main_grads);
  const auto layout = layout_of(rank, gradients);
  const auto reduction = replica_reduction(layout, {.shard_gradients = row.shard});
  for (int step = 0; step < kSteps; ++step) {
    gradients.begin_step();
    run_backward(weight, weight_gradient(row, step, rank.index));
    run_backward(bias, bias_gradient(row, step, rank.index));
    gradients.collect(0);
    reduction->start(0, gradients);
    reduction->finish(gradients);
    gradients.finish_step();
  }
  return {gradients.gradient(0).clone(), gradients.gradient(1).clone()};
}

// Sharded: the parts that the members hold do not overlap, so adding them loses nothing.
TEST_P(ReplicaReductionOf, GivesAllMembersTheSum) {
  const Case& row = GetParam();
  std::vector<TensorList> results(kRanks);
  run_gloo_ranks(kRanks, [&](Rank& rank) { results[rank.index] = train(row, rank); });
  at::Tensor weight = at::zeros({5, 3}, at::kDouble);
  at::Tensor bias = at::zeros({4}, at::kDouble);
  for (int step = 0; step < kSteps; ++step) {
    for (int rank = 0; rank < kRanks; ++rank) {
      weight += weight_gradient(row, step, rank).to(at::kDouble);
      bias += bias_gradient(row, step, rank).to(at::kDouble);
    }
  }
  for (int i = 0; i < 2; ++i) {
    const at::Tensor& wanted = i == 0 ? weight : bias;
    at::Tensor given = results[0][i];
    for (int rank = 1; rank < kRanks; ++rank) {
      EXPECT_TRUE(row.shard || at::equal(results[rank][i], results[0][i])) << "to the bit, rank " << rank;
      if (row.shard) given = given + results[rank][i];
    }
    EXPECT_LE((given.to(at::kDouble) - wanted).norm().item<double>(), row.tolerance * wanted.norm().item<double>());
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ReplicaReductionOf,
                         testing::Values(Case{"Double", at::kDouble, {}, 1e-14}, Case{"Float", at::kFloat, {}, 1e-6},
                                         Case{"FieldReport23Bf16", at::kBFloat16, {}, 8e-3},
                                         Case{"Half", at::kHalf, {}, 1e-3},
                                         Case{"Bf16WithMainGrad", at::kBFloat16, at::kFloat, 8e-3},
                                         Case{"ShardedDouble", at::kDouble, {}, 1e-14, true},
                                         Case{"ShardedBf16", at::kBFloat16, {}, 8e-3, true},
                                         Case{"ShardedBf16WithMainGrad", at::kBFloat16, at::kFloat, 8e-3, true}),
                         [](const auto& info) { return info.param.name; });

// Summed in float32 and rounded once: 256 + 1 + 1 is 256 twice over in bfloat16.
TEST(ReplicaReduction, FieldReport23Bf16IsRoundedOnce) {
  for (const bool shard : {false, true}) {
    run_gloo_ranks(3, [&](Rank& rank) {
      const at::Tensor weight = trained(at::ones({1}, at::kBFloat16));
      Gradients gradients = gradients_of({stage_of(0, {{"weight", weight}})});
      const auto reduction = replica_reduction(layout_of(rank, gradients), {.shard_gradients = shard});
      gradients.begin_step();
      run_backward(weight, at::full({1}, rank.index == 0 ? 256 : 1, at::kBFloat16));
      reduction->start(0, gradients);
      reduction->finish(gradients);
      const bool owner = !shard || rank.index == 0;
      EXPECT_EQ(gradients.step_gradient(0).item<float>(), owner ? 258 : 0);
      gradients.finish_step();
    });
  }
}

TEST(ReplicaReduction, OneMemberAloneCountsAndNoneStaysUndefined) {
  for (const bool shard : {false, true}) {
    run_gloo_ranks(3, [&](Rank& rank) {
      const at::Tensor of_one = trained(at::ones({2}));
      const at::Tensor of_none = trained(at::ones({2, 2}));
      const at::Tensor empty = trained(at::ones({0, 4}));
      const at::Tensor scalar = trained(at::ones({}));
      const at::Tensor transposed = at::ones({3, 2}).t().requires_grad_();
      Gradients gradients = gradients_of({stage_of(
          0, {{"one", of_one}, {"none", of_none}, {"empty", empty}, {"scalar", scalar}, {"transposed", transposed}})});
      const auto layout = layout_of(rank, gradients);
      const auto reduction = replica_reduction(layout, {.shard_gradients = shard});
      gradients.begin_step();
      if (rank.index == 1) run_backward(of_one, at::full({2}, 7.0));
      run_backward(empty, at::ones({0, 4}));
      run_backward(scalar, at::full({}, 2.0));
      run_backward(transposed, at::arange(6, at::kFloat).view({2, 3}));
      reduction->start(0, gradients);
      reduction->finish(gradients);
      const auto sum_of = [&](std::size_t index) {
        at::Tensor sum = gradients.step_gradient(index).contiguous().clone();
        if (shard) layout->groups[0]->all_reduce_sum(sum);
        return sum;
      };
      EXPECT_TRUE(at::equal(sum_of(0), at::full({2}, 7.0)));
      EXPECT_FALSE(gradients.step_gradient(1).defined());
      EXPECT_EQ(sum_of(2).sizes(), at::IntArrayRef({0, 4}));
      EXPECT_EQ(sum_of(3).item<float>(), 6);
      EXPECT_TRUE(at::equal(sum_of(4), 3 * at::arange(6, at::kFloat).view({2, 3})));
      gradients.finish_step();
      EXPECT_FALSE(gradients.gradient(1).defined());
    });
  }
}

// Mirrors that finish their stages in different orders: a stage waits for those before it on the first member.
TEST(ReplicaReduction, StagesStartInTheOrderOfTheFirstMember) {
  run_gloo_ranks(2, [](Rank& rank) {
    const at::Tensor a = trained(at::ones({3}));
    const at::Tensor b = trained(at::ones({3}));
    Gradients gradients = gradients_of({stage_of(0, {{"a", a}}), stage_of(1, {{"b", b}})});
    const std::vector<int> order = rank.index == 0 ? std::vector<int>{1, 0} : std::vector<int>{0, 1};
    std::vector<std::string> started;
    const auto note = [&](const ReplicaBucket& bucket) {
      started.push_back(gradients.parameters()[bucket.indices.front()].name);
    };
    const auto reduction = replica_reduction(layout_of(rank, gradients, order), {.on_start = note});
    for (int step = 0; step < 2; ++step) {
      started.clear();
      gradients.begin_step();
      run_backward(a, at::full({3}, 1.0 + rank.index));
      run_backward(b, at::full({3}, 10.0 + rank.index));
      reduction->start(order[0], gradients);
      EXPECT_EQ(started.size(), rank.index == 0 ? 1u : 0u) << "the second member holds stage 0 back";
      reduction->start(order[1], gradients);
      EXPECT_THAT(started, testing::ElementsAre("b", "a"));
      reduction->finish(gradients);
      gradients.finish_step();
    }
    EXPECT_TRUE(at::equal(a.grad(), at::full({3}, 6.0)));
    EXPECT_TRUE(at::equal(b.grad(), at::full({3}, 42.0)));
  });
}

// The copies of a tied weight are in the first stage of one rank and in the last of another.
TEST(ReplicaReduction, ATiedWeightMayBeInDifferentStages) {
  run_gloo_ranks(2, [](Rank& rank) {
    const at::Tensor tied = trained(at::ones({2}));
    Gradients gradients = gradients_of({stage_of(rank.index, {{"embedding", tied}})});
    const auto reduction = replica_reduction(layout_of(rank, gradients));
    gradients.begin_step();
    run_backward(tied, at::full({2}, 1.0 + rank.index));
    reduction->start(rank.index, gradients);
    reduction->finish(gradients);
    gradients.finish_step();
    EXPECT_TRUE(at::equal(tied.grad(), at::full({2}, 3.0)));
  });
}

// What is held by which group, and that a group listed twice keeps one order for both.
TEST(ReplicaLayout, ParametersBelongToTheFirstGroupThatHoldsThem) {
  run_gloo_ranks(2, [](Rank& rank) {
    const Gradients gradients = gradients_of({stage_of(0, {{"alone", trained(at::ones({2}))},
                                                           {"dense", trained(at::ones({6}))},
                                                           {"dense.bf16", trained(at::ones({2}, at::kBFloat16))},
                                                           {"expert", trained(at::ones({5}))}})});
    const auto starts = [](const std::string& with) {
      return [with](const std::string& name) { return name.rfind(with, 0) == 0; };
    };
    const std::vector<GradientGroup> groups = {
        {nullptr, starts("alone")}, {rank.group, starts("expert")}, {rank.group, {}}};
    const ReplicaLayout layout =
        agree_on_layout(groups, gradients.parameters(), {{0}, 20, std::to_string(rank.index), std::chrono::seconds(9)});
    ASSERT_EQ(layout.groups.size(), 1u);
    EXPECT_THAT(layout.members[0], testing::ElementsAre("0", "1"));
    EXPECT_FALSE(layout.group_of[0].has_value());
    std::vector<std::string> buckets;
    for (const ReplicaBucket& bucket : layout.buckets) {
      std::string text;
      for (std::size_t index : bucket.indices) text += gradients.parameters()[index].name + ";";
      buckets.push_back(text + std::to_string(layout.part_size(bucket)));
    }
    // Of 20 bytes at most each; a larger one alone.
    EXPECT_THAT(buckets, testing::UnorderedElementsAre("dense;3", "expert;3", "dense.bf16;1"));
    const auto pieces = layout.pieces_of({0, {1, 3}, at::kFloat, 11}, 1, gradients.parameters());
    ASSERT_EQ(pieces.size(), 1u);  // The second half of 11 elements, 6 to 10, is the expert's alone.
    EXPECT_EQ(pieces[0].index, 3u);
    EXPECT_EQ(pieces[0].end - pieces[0].begin, 5);
    EXPECT_EQ(pieces[0].offset, 0);
  });
}

TEST(ReplicaReduction, RefusesSparseGradientsByName) {
  run_gloo_ranks(1, [](Rank& rank) {
    const at::Tensor table = trained(at::ones({4, 2}));
    Gradients gradients = gradients_of({stage_of(0, {{"embedding.weight", table}})});
    const auto reduction = replica_reduction(layout_of(rank, gradients));
    gradients.begin_step();
    at::embedding(table, at::tensor({1, 3}, at::kLong), -1, false, /*sparse=*/true).sum().backward();
    try {
      reduction->start(0, gradients);
      ADD_FAILURE() << "accepted";
    } catch (const ScheduleError& error) {
      EXPECT_STREQ(error.what(),
                   "[replica_reduction] gradients must be dense, got a sparse one for \"embedding.weight\"; an "
                   "embedding with sparse=false works");
    }
  });
}

TEST(ReplicaLayout, MembersThatTrainOtherParametersAreRefusedOnAllOfThem) {
  const auto errors = errors_of_gloo_ranks(3, [](Rank& rank) {
    const at::Tensor weight = trained(rank.index == 2 ? at::ones({3}) : at::ones({3, 1}));
    layout_of(rank, gradients_of({stage_of(0, {{"w", weight}})}));
  });
  EXPECT_THAT(errors, testing::Each(testing::Optional(std::string(
                          "[parallel_groups] the 3 members of gradient group 0 must train the same parameters, got "
                          "\"w\" ([3, 1], Float, gradient Float) on its member 0 alone and \"w\" ([3], Float, gradient "
                          "Float) on its member 2 alone; build and freeze all replicas alike"))));
}

// Nothing wakes a collective of Gloo; the wait for it ends all the same.
TEST(GroupCollectives, AbortEndsAWaitForAMemberThatNeverComes) {
  run_gloo_ranks(2,
                 [](Rank& rank) {
                   GroupCollectives group(rank.group, std::chrono::seconds(60), {});
                   if (rank.index == 1) return;
                   std::thread other([&] {
                     std::this_thread::sleep_for(std::chrono::milliseconds(50));
                     group.abort("rank 1 is gone");
                   });
                   at::Tensor tensor = at::ones({2});
                   std::string what;
                   try {
                     group.all_reduce_sum(tensor);
                   } catch (const TransportError& error) {
                     what = error.what();
                   }
                   other.join();
                   EXPECT_THAT(what, HasSubstr("aborted: rank 1 is gone"));
                 },
                 {.timeout = std::chrono::seconds(2)});
}

TEST(GroupCollectives, AWaitHasItsOwnTimeout) {
  run_gloo_ranks(2,
                 [](Rank& rank) {
                   GroupCollectives group(rank.group, std::chrono::milliseconds(100), {});
                   if (rank.index == 1) return;
                   at::Tensor tensor = at::ones({2});
                   try {
                     group.all_reduce_sum(tensor);
                     ADD_FAILURE() << "came back";
                   } catch (const TransportError& error) {
                     EXPECT_THAT(error.what(), HasSubstr("timed out after 100 ms"));
                   }
                 },
                 {.timeout = std::chrono::seconds(2)});
}

}  // namespace
}  // namespace dualpipe
