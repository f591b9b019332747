#include "plugin/runtime/stage_module.h"

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr std::string_view kWrappedName = "module";

class WrappedStage : public StageModule {
 public:
  WrappedStage(std::shared_ptr<torch::nn::Module> module, std::function<TensorList(const TensorList&)> forward,
               OverlapHook hook, std::vector<Phase> phases)
      : module_(register_module(std::string(kWrappedName), std::move(module))),
        forward_(std::move(forward)),
        hook_(std::move(hook)),
        phases_(std::move(phases)) {}

  TensorList forward(const TensorList& inputs) override { return forward_(inputs); }
  OverlapHook overlapped_forward_backward() override { return hook_; }
  std::vector<Phase> phases() override { return phases_; }
  const std::type_info& hook_type() const override {
    const torch::nn::Module& module = *module_;
    return typeid(module);
  }

  // As if the wrapped module were the stage itself.
  std::string logical_name(int stage, const std::string& local_name) const override {
    return StageModule::logical_name(stage, local_name.substr(kWrappedName.size() + 1));
  }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::function<TensorList(const TensorList&)> forward_;
  OverlapHook hook_;
  std::vector<Phase> phases_;
};

}  // namespace

std::string StageModule::logical_name(int stage, const std::string& local_name) const {
  return "stage" + std::to_string(stage) + "." + local_name;
}

std::shared_ptr<StageModule> make_stage(std::shared_ptr<torch::nn::Module> module,
                                        std::function<TensorList(const TensorList&)> forward, OverlapHook hook,
                                        std::vector<Phase> phases) {
  if (!module) throw ScheduleError("make_stage", "a module is wanted, got a null pointer");
  if (!forward) throw ScheduleError("make_stage", "a function from inputs to outputs is wanted, got an empty one");
  return std::make_shared<WrappedStage>(std::move(module), std::move(forward), std::move(hook), std::move(phases));
}

const at::Tensor& only_tensor(const TensorList& inputs) {
  if (inputs.size() == 1) return inputs[0];
  throw ScheduleError("make_stage", "a wrapped module takes 1 tensor, got " + std::to_string(inputs.size()) +
                                        "; give make_stage a function of the list as well");
}

}  // namespace dualpipe
