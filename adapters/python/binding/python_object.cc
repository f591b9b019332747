#include "adapters/python/binding/python_object.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/python_variable.h>

namespace dualpipe::python {
namespace {

std::string type_name(py::handle object) { return py::str(py::type::handle_of(object).attr("__name__")); }

[[noreturn]] void refuse(const std::string& what, const std::string& got) {
  throw py::type_error(fmt::format("{} must be a tensor or a sequence of tensors and None, got {}", what, got));
}

at::Tensor to_tensor(const std::string& what, py::handle given) {
  if (given.is_none()) return {};
  if (!THPVariable_Check(given.ptr())) refuse(what, "a sequence with " + type_name(given));
  return THPVariable_Unpack(given.ptr());
}

}  // namespace

SharedObject share(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            py::gil_scoped_acquire gil;
            delete held;
          }};
}

py::tuple to_tuple(const TensorList& tensors) {
  py::tuple result(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    result[i] = py::reinterpret_steal<py::object>(THPVariable_Wrap(tensors[i]));
  }
  return result;
}

TensorList to_tensors(const std::string& what, py::handle given) {
  if (THPVariable_Check(given.ptr())) return {THPVariable_Unpack(given.ptr())};
  if (!py::isinstance<py::tuple>(given) && !py::isinstance<py::list>(given)) refuse(what, type_name(given));
  TensorList tensors;
  for (py::handle entry : given) tensors.push_back(to_tensor(what, entry));
  return tensors;
}

MicroBatches to_micro_batches(const std::string& call, const std::string& what, py::handle given) {
  if (!py::isinstance<py::sequence>(given)) {
    throw py::type_error(
        fmt::format("[{}] {} must be a sequence with an entry per micro-batch, got {}", call, what, type_name(given)));
  }
  const auto entries = py::reinterpret_borrow<py::sequence>(given);
  const std::string entry = fmt::format("[{}] an entry of {}", call, what);
  MicroBatches all;
  for (std::size_t i = 0; i < entries.size(); ++i) all.push_back(to_tensors(entry, py::object(entries[i])));
  return all;
}

}  // namespace dualpipe::python
