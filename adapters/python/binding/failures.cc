#include "adapters/python/binding/failures.h"

#include <fmt/format.h>
#include <torch/csrc/Exceptions.h>

#include <utility>

#include "plugin/runtime/store_failure_channel.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/text.h"

namespace dualpipe::python {
namespace {

constexpr const char* kLostStore = "the store";  // The action of a store that no longer answers.

// A cell, or what a failure calls what is none ("the start of a step").
std::optional<Action> cell_of(const std::string& action) {
  try {
    return parse_action(action);
  } catch (const ScheduleError&) {
    return std::nullopt;
  }
}

std::string place(int stage, int micro_batch) { return fmt::format("stage {}, micro-batch {}", stage, micro_batch); }

// What this rank did, of what its own record or the shared one says.
std::string action_of(const Border& border, const PipelineError& error) {
  if (border.failures && border.failures->own()) return border.failures->own()->action;
  return error.record().rank == border.rank ? error.record().action : "";
}

std::string note(const Border& border, const std::string& action) {
  const Running& running = *border.running;
  const auto cell = cell_of(action);
  if (running.part == PythonPart::kForward) {
    return fmt::format("rank {}, {} ({})", border.rank, place(running.stage, running.micro_batch),
                       cell ? to_string(*cell) : fmt::format("{}F{}", running.stage, running.micro_batch));
  }
  if (!cell) return fmt::format("rank {}{}{}", border.rank, action.empty() ? "" : ", ", action);
  if (running.part == PythonPart::kHook && cell->paired) {
    return fmt::format("rank {}, {} and {} ({})", border.rank, place(cell->op.stage, cell->op.micro_batch),
                       place(cell->paired->stage, cell->paired->micro_batch), to_string(*cell));
  }
  const Op& op = cell->paired ? *cell->paired : cell->op;
  return fmt::format("rank {}, {} ({})", border.rank, place(op.stage, op.micro_batch), to_string(*cell));
}

void add_note(const py::handle& exception, const std::string& text) {
  if (py::hasattr(exception, "add_note")) {
    exception.attr("add_note")(text);
    return;
  }
  if (!py::hasattr(exception, "__notes__")) exception.attr("__notes__") = py::list();
  exception.attr("__notes__").attr("append")(text);
}

// Leaves the exception where the interpreter looks for it, with a note.
void set_noted(py::error_already_set& original, const std::string& text) {
  try {
    add_note(original.value(), text);
  } catch (const py::error_already_set&) {
    // An exception that takes no notes goes without.
  }
  original.restore();
}

void set_schedule_error(const ScheduleError& mistake) {
  PyErr_SetObject(py::module_::import("dualpipe.errors").attr("ScheduleError").ptr(), py::str(mistake.what()).ptr());
}

void set_pipeline_error(const PipelineError& error) {
  const FailureRecord& record = error.record();
  const py::object type = py::module_::import("dualpipe.errors").attr("PipelineError");
  const py::object value = type(error.what(), record.rank, record.action, record.cause);
  PyErr_SetObject(type.ptr(), value.ptr());
}

// As `raise PipelineError(...) from <what the interpreter holds>`.
void set_pipeline_error_from_current(const PipelineError& error) {
  const py::error_already_set cause;
  set_pipeline_error(error);
  const py::error_already_set effect;
  PyException_SetCause(effect.value().ptr(), py::object(cause.value()).release().ptr());
  py::error_already_set(effect).restore();
}

void set_python_error(const Border& border, const PipelineError& error) {
  PyErr_Clear();  // LibTorch leaves the exception of a backward there too.
  try {
    std::rethrow_if_nested(error);
    set_pipeline_error(error);
  } catch (py::error_already_set& original) {
    set_noted(original, note(border, action_of(border, error)));
  } catch (python_error& original) {
    original.restore();
    py::error_already_set taken;
    set_noted(taken, note(border, action_of(border, error)));
  } catch (const py::builtin_exception& mistake) {
    mistake.set_error();
    py::error_already_set taken;
    set_noted(taken, note(border, action_of(border, error)));
  } catch (const ScheduleError& mistake) {
    set_schedule_error(mistake);
    py::error_already_set taken;
    set_noted(taken, note(border, action_of(border, error)));
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
    set_pipeline_error_from_current(error);
  }
}

}  // namespace

OwnFailures::OwnFailures(c10::intrusive_ptr<c10d::Store> store, bool lost_store_fails)
    : shared_(make_store_failure_channel(std::move(store))), lost_store_fails_(lost_store_fails) {}

bool OwnFailures::is_told(const FailureRecord& failure) const {
  return lost_store_fails_ || failure.action != kLostStore;
}

FailureRecord OwnFailures::record(const FailureRecord& failure) {
  own_ = failure;
  const FailureRecord first = shared_->record(failure);
  return is_told(first) ? first : failure;
}

std::optional<FailureRecord> OwnFailures::first() {
  const auto first = shared_->first();
  return first && is_told(*first) ? first : std::nullopt;
}

void cross_border(const Border& border, const std::function<void()>& body) {
  try {
    body();
  } catch (const PipelineError& error) {
    py::gil_scoped_acquire gil;
    set_python_error(border, error);
    throw py::error_already_set();
  }
}

void bind_failures(py::module_& module) {
  py::class_<FailureRecord>(module, "FailureRecord")
      .def_readonly("rank", &FailureRecord::rank)
      .def_readonly("action", &FailureRecord::action)
      .def_readonly("cause", &FailureRecord::cause)
      .def("__str__", &FailureRecord::to_string);
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(std::move(thrown));
    } catch (const ScheduleError& mistake) {
      set_schedule_error(mistake);
    } catch (const PipelineError& error) {
      set_pipeline_error(error);
    }
  });
}

}  // namespace dualpipe::python
