#include "adapters/python/binding/python_stage.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>

#include "plugin/schedule/error.h"

namespace dualpipe::python {
namespace {

// A std::type_info cannot be made at run time, so the classes of a rank's stages are numbered.
template <int N>
struct PythonClass {};
constexpr int kMostClasses = 8;
const std::type_info& python_class(int number) {
  static const std::array<const std::type_info*, kMostClasses> all{
      &typeid(PythonClass<0>), &typeid(PythonClass<1>), &typeid(PythonClass<2>), &typeid(PythonClass<3>),
      &typeid(PythonClass<4>), &typeid(PythonClass<5>), &typeid(PythonClass<6>), &typeid(PythonClass<7>)};
  return *all.at(number);
}

at::Tensor to_loss(py::handle given) {
  if (given.is_none()) return {};
  if (THPVariable_Check(given.ptr())) return THPVariable_Unpack(given.ptr());
  throw py::type_error("[criterion] must return a scalar tensor, got " +
                       std::string(py::str(py::type::handle_of(given).attr("__name__"))));
}

// Python calls a criterion of C++ as (outputs, labels), whichever language it was written in.
py::object criterion_to_python(const Criterion* criterion) {
  if (criterion == nullptr) return py::none();
  return py::cpp_function([loss = criterion->loss](const py::object& outputs, const py::object& labels) {
    const TensorList given = to_tensors("[criterion] outputs", outputs);
    const TensorList wanted = to_tensors("[criterion] labels", labels);
    py::gil_scoped_release no_gil;
    return loss(given, wanted);
  });
}

class PythonStage : public StageModule {
 public:
  PythonStage(const StageDescription& description, std::shared_ptr<Running> running)
      : running_(std::move(running)),
        stage_(description.stage),
        hook_kind_(description.hook_kind),
        owner_(share(description.owner)),
        forward_(share(description.forward)),
        begin_(share(description.begin_micro_batch)),
        overlap_(share(description.overlap)) {
    for (const auto& [name, tensor] : description.weights) {
      names_.push_back(name);
      register_parameter(std::to_string(names_.size() - 1), tensor, tensor.requires_grad());
    }
  }

  void begin_micro_batch(int micro_batch) override {
    running_->stage = stage_;
    running_->micro_batch = micro_batch;
    running_->part = PythonPart::kForward;
    running_->store = WeightGradStore::current();
    if (begin_->is_none()) return;
    py::gil_scoped_acquire gil;
    (*begin_)(micro_batch);
  }

  TensorList forward(const TensorList& inputs) override {
    py::gil_scoped_acquire gil;
    TensorList outputs =
        to_tensors(fmt::format("[stage {}] what forward returns", stage_), (*forward_)(to_tuple(inputs)));
    running_->part = PythonPart::kOther;
    return outputs;
  }

  OverlapHook overlapped_forward_backward() override {
    if (overlap_->is_none()) return {};
    return [overlap = overlap_](auto&&... arguments) { return run_hook(*overlap, arguments...); };
  }
  const std::type_info& hook_type() const override { return python_class(hook_kind_); }
  std::string logical_name(int /*stage*/, const std::string& local_name) const override {
    return names_.at(std::stoul(local_name));
  }

 private:
  static OverlapResult run_hook(const py::object& overlap, StageModule& module0, const TensorList& inputs0,
                                const Criterion* criterion0, const TensorList& labels0, StageModule& module1,
                                const at::Tensor& loss1, const TensorList& outputs1, const TensorList& output_grads1) {
    auto& stage0 = dynamic_cast<PythonStage&>(module0);
    auto& stage1 = dynamic_cast<PythonStage&>(module1);
    stage0.running_->part = PythonPart::kHook;
    py::gil_scoped_acquire gil;
    const py::object result =
        overlap(*stage0.owner_, to_tuple(inputs0), criterion_to_python(criterion0), to_tuple(labels0), *stage1.owner_,
                to_tuple({loss1})[0], to_tuple(outputs1), to_tuple(output_grads1));
    if (!py::isinstance<py::tuple>(result) || py::len(result) != 2) {
      throw py::type_error("[overlapped_forward_backward] must return a tuple of the outputs and the loss (or None)");
    }
    const py::tuple pair(result);
    stage0.running_->part = PythonPart::kOther;
    return {to_tensors("[overlapped_forward_backward] the outputs", pair[0]), to_loss(pair[1])};
  }

  std::shared_ptr<Running> running_;
  int stage_;
  int hook_kind_;
  std::vector<std::string> names_;
  SharedObject owner_;
  SharedObject forward_;
  SharedObject begin_;
  SharedObject overlap_;
};

}  // namespace

std::shared_ptr<StageModule> make_python_stage(const StageDescription& description, std::shared_ptr<Running> running) {
  return std::make_shared<PythonStage>(description, std::move(running));
}

std::optional<Criterion> make_python_criterion(const py::object& loss, const py::object& weight,
                                               std::shared_ptr<Running> running) {
  if (loss.is_none()) return std::nullopt;
  const Criterion::Loss call = [running = std::move(running), shared = share(loss)](const TensorList& outputs,
                                                                                    const TensorList& labels) {
    py::gil_scoped_acquire gil;
    const PythonPart before = std::exchange(running->part, PythonPart::kForward);
    at::Tensor result = to_loss((*shared)(to_tuple(outputs), to_tuple(labels)));
    running->part = before;
    return result;
  };
  if (weight.is_none()) return Criterion(call);
  return Criterion::sum(call, [shared = share(weight)](const TensorList& labels) {
    py::gil_scoped_acquire gil;
    return (*shared)(to_tuple(labels)).cast<double>();
  });
}

void bind_stage(py::module_& module) {
  py::class_<StageDescription>(module, "StageDescription")
      .def(py::init<>())
      .def_readwrite("owner", &StageDescription::owner)
      .def_readwrite("forward", &StageDescription::forward)
      .def_readwrite("begin_micro_batch", &StageDescription::begin_micro_batch)
      .def_readwrite("overlap", &StageDescription::overlap)
      .def_readwrite("hook_kind", &StageDescription::hook_kind)
      .def_readwrite("stage", &StageDescription::stage)
      .def_readwrite("weights", &StageDescription::weights);
  module.attr("MOST_HOOK_KINDS") = kMostClasses;
}

}  // namespace dualpipe::python
