#include "adapters/python/binding/running.h"

#include <ATen/ThreadLocalPythonObjects.h>
#include <torch/csrc/PyInterpreter.h>

#include <utility>

#include "adapters/python/binding/python_object.h"
#include "plugin/runtime/gloo_threads.h"

namespace dualpipe::python {
namespace {

using Local = at::impl::ThreadLocalPythonObjects;

const std::string& key() {
  static const std::string name = "dualpipe::running";
  return name;
}

// With the GIL. Null where no pipeline runs in this thread's name.
std::shared_ptr<Running> current_running() {
  if (!Local::contains(key())) return nullptr;
  return py::handle(Local::get(key())->ptr(getPyInterpreter())).cast<std::shared_ptr<Running>>();
}

WeightGradStore* splitting_store() {
  const auto running = current_running();
  return running && running->store && running->store->splitting() ? running->store : nullptr;
}

// False where no engine wants closures now.
bool put_weight_gradient(const py::function& work, std::size_t bytes) {
  WeightGradStore* store = splitting_store();
  if (store == nullptr) return false;
  const auto run = [shared = share(work)] {
    py::gil_scoped_acquire gil;
    (*shared)();
  };
  store->put(run, bytes);
  return true;
}

}  // namespace

RunningScope::RunningScope(const std::shared_ptr<Running>& running) {
  py::gil_scoped_acquire gil;
  if (Local::contains(key())) previous_ = Local::get(key());
  py::object object = py::cast(running);
  Local::set(key(), std::make_shared<c10::SafePyObject>(object.release().ptr(), getPyInterpreter()));
}

RunningScope::~RunningScope() {
  if (previous_) {
    Local::set(key(), std::move(previous_));
  } else {
    Local::erase(key());
  }
}

void bind_running(py::module_& module) {
  const py::class_<Running, std::shared_ptr<Running>> running(module, "Running");
  module.def("make_gloo_threads_yield", &make_gloo_threads_yield, py::arg("group_size"));
  module.def("is_splitting", [] { return splitting_store() != nullptr; });
  module.def("put_weight_gradient", &put_weight_gradient, py::arg("work"), py::arg("bytes"));
}

}  // namespace dualpipe::python
