// tests/pretrain_gpt/checkpoint/planted_state.h
//
// Values that say of every element of a model and its optimizer which one it is, and the check that each is where it
// belongs. Where an element of a rank's part lies in the whole weight is found by initial values, which are drawn at
// random by the parameter's name: nothing is known here of how layers divide.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/optimizer_state.h"
#include "tests/pretrain_gpt/parallel_case.h"

namespace pretrain_gpt {

class PlantedState {
 public:
  // Before anything has changed the parameters. `config` is that of the run, of any dtype.
  PlantedState(const Config& config, const std::vector<GptChunk*>& chunks, const ProcessGroups& groups)
      : chunks_(chunks) {
    Config exact = config;
    exact.params_dtype = "float64";  // Initial values do not repeat in it.
    const GptChunk whole(exact, whole_model(exact));
    for (const auto& item : whole.named_parameters()) {
      whole_[item.key()] = item.value().detach();
    }
    for (const GptChunk* chunk : chunks) {
      const GptChunk like(exact, groups.model_parallel(config.sequence_parallel), chunk->chunk());
      for (const auto& item : like.named_parameters()) {
        places_[item.key()] = places_in(whole_.at(item.key()), item.value().detach()).reshape({-1});
      }
    }
  }

  void plant(torch::optim::Optimizer& optimizer) const {
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : parameters()) {
      parameter.copy_(value(name, "weight", places_.at(name)).view(parameter.sizes()));
    }
    for (const ParameterState& state : parameter_states(optimizer)) {
      for (const auto& [kind, tensor] : tensors_of(state)) {
        tensor.copy_(value(name_of(state.parameter), kind, places_of(state)));
      }
      state.adamw->step(kSteps);
    }
    for (const auto& [name, buffer] : buffers()) {
      buffer.copy_(value(name, "weight", at::arange(buffer.numel())));
    }
  }

  // To the bit; with `weights_alone` moments and steps are as new.
  void expect_planted(torch::optim::Optimizer& optimizer, bool weights_alone = false) const {
    for (const auto& [name, parameter] : parameters()) {
      const at::Tensor wanted = value(name, "weight", places_.at(name)).to(parameter.scalar_type());
      EXPECT_TRUE(at::equal(parameter.detach().reshape({-1}), wanted)) << name;
    }
    for (const ParameterState& state : parameter_states(optimizer)) {
      const std::string name = name_of(state.parameter);
      for (const auto& [kind, tensor] : tensors_of(state)) {
        const at::Tensor planted = value(name, kind, places_of(state)).to(tensor.scalar_type());
        const bool is_new = weights_alone && kind != "weight";
        EXPECT_TRUE(at::equal(tensor, is_new ? at::zeros_like(planted) : planted)) << name << " " << kind;
      }
      EXPECT_EQ(state.adamw->step(), weights_alone ? 0 : kSteps) << name;
    }
    for (const auto& [name, buffer] : buffers()) {
      EXPECT_TRUE(at::equal(buffer, value(name, "weight", at::arange(buffer.numel())).to(buffer.scalar_type())));
    }
  }

  // Of the whole model.
  std::vector<std::string> parameter_names() const {
    std::vector<std::string> names;
    for (const auto& [name, weight] : whole_) {
      names.push_back(name);
    }
    return names;
  }

 private:
  static constexpr std::int64_t kSteps = 17;

  // Different for every name and kind, and for every element of a tensor in float32.
  static at::Tensor value(const std::string& name, const std::string& kind, const at::Tensor& places) {
    const auto salt = static_cast<double>(std::hash<std::string>{}(name + kind) % 1000);
    return salt + places.to(at::kDouble) / 4096;
  }

  std::map<std::string, at::Tensor> parameters() const {
    std::map<std::string, at::Tensor> parameters;
    for (const GptChunk* chunk : chunks_) {
      for (const auto& item : chunk->named_parameters()) {
        parameters.emplace(item.key(), item.value());
      }
    }
    return parameters;
  }

  std::map<std::string, at::Tensor> buffers() const {
    std::map<std::string, at::Tensor> buffers;
    for (const GptChunk* chunk : chunks_) {
      for (const auto& item : chunk->named_buffers()) {
        buffers.emplace(item.key(), item.value());
      }
    }
    return buffers;
  }

  // A master has the parameter's values in more digits.
  static std::map<std::string, at::Tensor> tensors_of(const ParameterState& state) {
    std::map<std::string, at::Tensor> tensors{{"exp_avg", state.exp_avg}, {"exp_avg_sq", state.exp_avg_sq}};
    if (state.master.defined()) {
      tensors["weight"] = state.master;
    }
    return tensors;
  }

  std::string name_of(const at::Tensor& parameter) const {
    for (const auto& [name, other] : parameters()) {
      if (other.is_same(parameter)) {
        return name;
      }
    }
    ADD_FAILURE() << "the optimizer has a parameter that no chunk has";
    return "";
  }

  at::Tensor places_of(const ParameterState& state) const {
    return places_.at(name_of(state.parameter)).narrow(0, state.from, state.count);
  }

  std::vector<GptChunk*> chunks_;
  std::map<std::string, at::Tensor> whole_, places_;
};

}  // namespace pretrain_gpt
