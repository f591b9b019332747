// tests/pretrain_gpt/moe_case.h
//
// A mixture of experts on one rank or on several: divisions, and what each rank of one computes on.
#pragma once

#include <memory>
#include <string>

#include "examples/pretrain_gpt/model/moe/moe_mlp.h"
#include "tests/pretrain_gpt/moe_reference.h"

namespace pretrain_gpt {

inline constexpr double kAuxiliaryScale = 0.5;

// What the experts' bias does to the choices.
enum class Choices { kFree, kSomeGetNone, kOneGetsAll, kLastHalfGetsNone };

struct Division {
  std::string name;
  int tensor = 1, expert_tensor = 1, expert = 1, world = 1;
  bool sequence_parallel = false;

  int data_index(int rank) const { return rank / tensor; }
  int data_size() const { return world / tensor; }
};

struct MoeCase {
  Division division;
  Choices choices = Choices::kFree;
  std::int64_t topk = 2;
  std::int64_t shared = 6;
};

inline Config config_of(const MoeCase& test) {
  Config config = moe_config();
  config.moe_router_topk = test.topk;
  config.moe_shared_expert_intermediate_size = test.shared;
  return config;
}

inline std::unique_ptr<MoeMlp> make_moe(const MoeCase& test, const ModelParallel& parallel = {}) {
  const Config config = config_of(test);
  auto moe = std::make_unique<MoeMlp>(config, parallel, "layers.0.mlp");
  sharpen(*moe);
  moe->router().set_auxiliary_loss_scale(kAuxiliaryScale);
  at::Tensor bias = moe->router().buffers()[0];
  if (test.choices == Choices::kSomeGetNone) {
    bias.index_fill_(0, at::tensor({0, 3, 4}, at::kLong), -100);
  } else if (test.choices == Choices::kOneGetsAll) {
    bias[5] = 100;
  } else if (test.choices == Choices::kLastHalfGetsNone) {
    bias.narrow(0, 4, 4).fill_(-100);
  }
  return moe;
}

// Of the data-parallel rank, the whole sequence.
inline at::Tensor input_of(const Config& config, int data_index) {
  return some_values({2, 6, config.hidden_size}, 0.05 * (data_index + 1));
}
inline at::Tensor probe_of(const Config& config, int data_index) {
  return some_values({2, 6, config.hidden_size}, 0.35 * (data_index + 1));
}

inline ModelParallel groups_of(const Division& division, const TestRank& rank) {
  ModelParallel parallel;
  parallel.sequence_parallel = division.sequence_parallel;
  parallel.tensor = rank.group_by("tensor", [&](int r) { return r / division.tensor; });
  if (division.expert_tensor > 1) {
    parallel.expert_tensor = parallel.tensor;
  }
  parallel.expert = rank.group_by("expert", [&](int r) {
    const int block = division.expert_tensor * division.expert;
    return r / block * block + r % division.expert_tensor;
  });
  return parallel;
}

inline at::Tensor part_of_sequence(const at::Tensor& whole, const ModelParallel& parallel) {
  return parallel.sequence_parallel
             ? whole.chunk(parallel.tensor.size(), 1)[static_cast<std::size_t>(parallel.tensor.rank())]
             : whole;
}

inline const Division kAlone{"Alone"};
inline const Division kEp2{"Ep2", 1, 1, 2, 2};
inline const Division kEp4{"Ep4", 1, 1, 4, 4};
inline const Division kEp8{"Ep8", 1, 1, 8, 8};
inline const Division kEp2Edp2{"Ep2Edp2", 1, 1, 2, 4};
inline const Division kTp2{"Tp2", 2, 2, 1, 2};
inline const Division kTp2Ep2{"Tp2Ep2", 2, 2, 2, 4};
inline const Division kTp2Sequence{"Tp2Sequence", 2, 2, 1, 2, true};
inline const Division kTp2SequenceEp2{"Tp2SequenceEp2", 2, 2, 2, 4, true};
inline const Division kEtp1{"Etp1", 2, 1, 1, 2, true};
inline const Division kEtp1Ep2{"Etp1Ep2", 2, 1, 2, 2, true};
inline const Division kEtp1Ep4{"Etp1Ep4", 2, 1, 4, 4, true};

inline std::string case_name(const testing::TestParamInfo<MoeCase>& info) {
  const MoeCase& test = info.param;
  const char* const choices[] = {"", "SomeGetNone", "OneGetsAll", "LastHalfGetsNone"};
  return test.division.name + choices[static_cast<std::size_t>(test.choices)] + "Top" + std::to_string(test.topk) +
         (test.shared > 0 ? "" : "NoShared");
}

}  // namespace pretrain_gpt
