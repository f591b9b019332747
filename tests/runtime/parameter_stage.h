// tests/runtime/parameter_stage.h
//
// Stages that are nothing but parameters under given logical names, for tests of what happens to gradients.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugin/runtime/gradients.h"
#include "plugin/runtime/stage_module.h"

namespace dualpipe {

class ParameterStage final : public StageModule {
 public:
  explicit ParameterStage(const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
    for (const auto& [name, parameter] : parameters) {
      register_parameter(std::to_string(names_.size()), parameter, parameter.requires_grad());
      names_.push_back(name);
    }
  }

  TensorList forward(const TensorList& inputs) override { return inputs; }
  std::string logical_name(int, const std::string& local_name) const override {
    return names_.at(std::stoul(local_name));
  }

 private:
  std::vector<std::string> names_;
};

using Stages = std::vector<std::pair<int, std::shared_ptr<StageModule>>>;

inline std::pair<int, std::shared_ptr<StageModule>> stage_of(
    int stage, const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  return {stage, std::make_shared<ParameterStage>(parameters)};
}

inline at::Tensor trained(const at::Tensor& values) { return values.detach().clone().requires_grad_(); }

// Adds `gradient` to the parameter's .grad by way of a backward.
inline void run_backward(const at::Tensor& parameter, const at::Tensor& gradient) {
  (parameter * gradient).sum().backward();
}

}  // namespace dualpipe
