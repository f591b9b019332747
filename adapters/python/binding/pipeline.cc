#include "adapters/python/binding/pipeline.h"

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <exception>
#include <numeric>
#include <set>
#include <utility>

#include "adapters/python/binding/renumbered_transport.h"
#include "plugin/runtime/c10d_transport.h"
#include "plugin/runtime/timeline_file.h"
#include "plugin/schedule/error.h"

namespace dualpipe::python {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Edges = std::vector<std::pair<int, int>>;

std::vector<int> mapping_of(const PythonPipelineOptions& options, int ranks) {
  if (!options.rank_mapping.empty()) return options.rank_mapping;
  std::vector<int> same(ranks);
  std::iota(same.begin(), same.end(), 0);
  return same;
}

// Of the directed edges between neighbouring stages, or between mirrors, in numbers of the group.
using RankPairs = std::set<std::pair<int, int>>;
Edges in_group(const RankPairs& pairs, const std::vector<int>& mapping) {
  std::vector<int> group_rank(mapping.size());
  for (std::size_t g = 0; g < mapping.size(); ++g) group_rank.at(mapping[g]) = static_cast<int>(g);
  Edges edges;
  for (const auto& [a, b] : pairs) {
    if (a == b) continue;
    edges.emplace_back(group_rank.at(a), group_rank.at(b));
    edges.emplace_back(group_rank.at(b), group_rank.at(a));
  }
  return edges;
}

RankPairs neighbours(const Schedule& schedule) {
  RankPairs pairs;
  for (const int micro_batch : {0, schedule.num_microbatches - 1}) {
    for (int stage = 1; stage < schedule.placement.stages(); ++stage) {
      pairs.insert(std::minmax(
          {schedule.placement.rank_of(stage - 1, micro_batch), schedule.placement.rank_of(stage, micro_batch)}));
    }
  }
  return pairs;
}

RankPairs mirrors(const Placement& placement) {
  RankPairs pairs;
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    if (const auto mirror = placement.mirror_of(rank)) pairs.insert(std::minmax({rank, *mirror}));
  }
  return pairs;
}

// For NCCL alone. A schedule that cannot be made is met again by the pipeline, which tells the other ranks.
C10dTransportOptions edges_of(const std::string& schedule, int ranks, const PythonPipelineOptions& options) {
  C10dTransportOptions transport;
  try {
    const PipelineOptions& engine = options.engine;
    const Schedule made =
        engine.registry.make(schedule, {ranks, engine.num_microbatches, engine.virtual_pipeline_model_parallel_size});
    const std::vector<int> mapping = mapping_of(options, ranks);
    transport.edges = in_group(neighbours(made), mapping);
    transport.mirror_edges = in_group(mirrors(made.placement), mapping);
  } catch (const std::exception&) {
  }
  return transport;
}

std::unique_ptr<Pipeline> make_engine(const std::string& schedule, const Group& group,
                                      std::vector<std::shared_ptr<StageModule>> stages,
                                      const PythonPipelineOptions& options) {
  const PipelineOptions& engine = options.engine;
  if (options.rank_mapping.empty() && !options.device) {
    return std::make_unique<Pipeline>(schedule, group, std::move(stages), engine);
  }
  C10dTransportOptions transport = edges_of(schedule, group->getSize(), options);
  transport.timeout = engine.timeout;
  transport.nccl_max_ctas = engine.nccl_max_ctas;
  transport.failures = engine.failures;
  if (options.device) transport.device = options.device->type();
  std::shared_ptr<Transport> over = make_c10d_transport(group, transport);
  if (!options.rank_mapping.empty()) over = renumber(std::move(over), options.rank_mapping);
  return std::make_unique<Pipeline>(schedule, std::move(over), std::move(stages), engine);
}

// Over the group's store behind a prefix of this pipeline: every rank counts how many it has made.
std::shared_ptr<OwnFailures> make_failures(const Group& group, const PythonPipelineOptions& options) {
  if (!options.notify_failures) return nullptr;
  if (options.store) return std::make_shared<OwnFailures>(options.store, /*lost_store_fails=*/true);
  if (!group->getStore()) return nullptr;
  const auto store = group->getStore()->clone();
  const auto count = store->add("dualpipe/pipelines/" + std::to_string(group->getRank()), 1);
  return std::make_shared<OwnFailures>(
      c10::make_intrusive<c10d::PrefixStore>("dualpipe/pipeline" + std::to_string(count), store),
      /*lost_store_fails=*/false);
}

// Of the world, where there is one.
int number_of(const Group& group, const PythonPipelineOptions& options) {
  if (options.engine.parallel.world) return options.engine.parallel.world->getRank();
  if (options.rank_mapping.empty()) return group->getRank();
  return options.rank_mapping.at(group->getRank());
}

std::vector<std::pair<std::string, at::Tensor>> parameters_of(PythonPipeline& pipeline) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const StageParameter& parameter : pipeline.engine().parameters()) {
    all.emplace_back(parameter.name, parameter.parameter);
  }
  return all;
}

// By logical name; of those that have one.
std::map<std::string, at::Tensor> gradients_of(PythonPipeline& pipeline) {
  std::map<std::string, at::Tensor> all;
  const Gradients& gradients = pipeline.engine().gradients();
  for (std::size_t i = 0; i < gradients.parameters().size(); ++i) {
    if (const at::Tensor gradient = gradients.gradient(i); gradient.defined()) {
      all.emplace(gradients.parameters()[i].name, gradient);
    }
  }
  return all;
}

}  // namespace

PythonPipeline::PythonPipeline(const std::string& schedule, Group group, const std::vector<StageDescription>& stages,
                               PythonPipelineOptions options) {
  std::vector<std::shared_ptr<StageModule>> modules;
  for (const StageDescription& stage : stages) modules.push_back(make_python_stage(stage, running_));
  py::gil_scoped_release no_gil;
  const auto failures = make_failures(group, options);
  options.engine.failures = failures;
  border_ = {0, running_, failures};
  engine_ = make_engine(schedule, group, std::move(modules), options);
  border_.rank = number_of(group, options);
}

PythonPipeline::~PythonPipeline() {
  py::gil_scoped_release no_gil;
  norm_.reset();
  engine_.reset();
}

// The caller's mistakes on one rank alone must not leave the others waiting.
void PythonPipeline::take(const std::function<void()>& body) {
  std::exception_ptr mistake;
  try {
    return body();
  } catch (...) {
    mistake = std::current_exception();
  }
  py::gil_scoped_release no_gil;
  cross_border(border_, [&] { engine_->guarded("the start of a step", [&] { std::rethrow_exception(mistake); }); });
}

StepResult PythonPipeline::run(const std::function<StepResult()>& body) {
  StepResult result;
  py::gil_scoped_release no_gil;
  const RunningScope scope(running_);
  cross_border(border_, [&] { result = body(); });
  return result;
}

StepResult PythonPipeline::step(const py::object& inputs, const py::object& labels, const py::object& criterion,
                                const py::object& weight, bool return_outputs) {
  MicroBatches given, wanted;
  std::optional<Criterion> loss;
  take([&] {
    given = to_micro_batches("step", "inputs", inputs);
    wanted = to_micro_batches("step", "labels", labels);
    loss = make_python_criterion(criterion, weight, running_);
    if (!loss) throw ScheduleError("step", "a criterion is wanted, got None; evaluate() goes without");
  });
  return run([&] { return engine_->step(given, wanted, *loss, return_outputs); });
}

StepResult PythonPipeline::evaluate(const py::object& inputs, const py::object& labels, const py::object& criterion,
                                    const py::object& weight, bool return_outputs) {
  MicroBatches given, wanted;
  take([&] {
    given = to_micro_batches("evaluate", "inputs", inputs);
    wanted = to_micro_batches("evaluate", "labels", labels);
  });
  const auto loss = make_python_criterion(criterion, weight, running_);
  return run([&] { return engine_->evaluate(given, wanted, loss, return_outputs); });
}

void PythonPipeline::finish_gradients() {
  const RunningScope scope(running_);
  cross_border(border_, [&] { engine_->finish_gradients(); });
}

double PythonPipeline::compute_norm() {
  double norm = 0;
  const auto compute = [&] {
    if (!norm_)
      norm_ = std::make_unique<GradientNorm>(engine_->world(), engine_->gradients(), engine_->gradient_parts());
    norm = norm_->compute(engine_->gradients());
  };
  cross_border(border_, [&] { engine_->guarded("gradient norm", compute); });
  return norm;
}

void PythonPipeline::guarded(const std::string& action, const SharedObject& body) {
  const auto call = [&] {
    py::gil_scoped_acquire gil;
    (*body)();
  };
  cross_border(border_, [&] { engine_->guarded(action, call); });
}

void bind_pipeline(py::module_& module) {
  using no_gil = py::call_guard<py::gil_scoped_release>;
  py::class_<GradientGroup>(module, "GradientGroup")
      .def(py::init<>())
      .def_readwrite("group", &GradientGroup::group)
      .def_readwrite("holds", &GradientGroup::holds);
  py::class_<ParallelGroups>(module, "ParallelGroups")
      .def(py::init<>())
      .def_readwrite("gradients", &ParallelGroups::gradients)
      .def_readwrite("losses", &ParallelGroups::losses)
      .def_readwrite("world", &ParallelGroups::world)
      .def_readwrite("shard_of", &ParallelGroups::shard_of);
  py::class_<PipelineOptions>(module, "PipelineOptions")
      .def(py::init<>())
      .def_readwrite("num_microbatches", &PipelineOptions::num_microbatches)
      .def_readwrite("virtual_pipeline_model_parallel_size", &PipelineOptions::virtual_pipeline_model_parallel_size)
      .def_readwrite("variable_seq_lengths", &PipelineOptions::variable_seq_lengths)
      .def_readwrite("reduce_mirrors", &PipelineOptions::reduce_mirrors)
      .def_readwrite("parallel", &PipelineOptions::parallel)
      .def_readwrite("gradient_bucket_bytes", &PipelineOptions::gradient_bucket_bytes)
      .def_readwrite("shard_gradients", &PipelineOptions::shard_gradients)
      .def_readwrite("defer_tail_weight_gradients", &PipelineOptions::defer_tail_weight_gradients)
      .def_readwrite("mean_loss_on_every_rank", &PipelineOptions::mean_loss_on_every_rank)
      .def_readwrite("slots", &PipelineOptions::slots)
      .def_readwrite("timeout", &PipelineOptions::timeout)
      .def_readwrite("nccl_max_ctas", &PipelineOptions::nccl_max_ctas)
      .def_readwrite("main_grads", &PipelineOptions::main_grads)
      .def_readwrite("live_bytes", &PipelineOptions::live_bytes)
      .def_readwrite("on_fatal", &PipelineOptions::on_fatal);
  py::class_<PythonPipelineOptions>(module, "Options")
      .def(py::init<>())
      .def_readwrite("engine", &PythonPipelineOptions::engine)
      .def_readwrite("rank_mapping", &PythonPipelineOptions::rank_mapping)
      .def_readwrite("notify_failures", &PythonPipelineOptions::notify_failures)
      .def_readwrite("store", &PythonPipelineOptions::store)
      .def_readwrite("device", &PythonPipelineOptions::device);
  py::class_<PythonPipeline>(module, "Pipeline")
      .def(py::init<const std::string&, Group, const std::vector<StageDescription>&, PythonPipelineOptions>())
      .def("step", &PythonPipeline::step)
      .def("evaluate", &PythonPipeline::evaluate)
      .def("finish_gradients", &PythonPipeline::finish_gradients, no_gil())
      .def("compute_norm", &PythonPipeline::compute_norm, no_gil())
      .def("guarded",
           [](PythonPipeline& pipeline, const std::string& action, const py::function& body) {
             const SharedObject shared = share(body);
             py::gil_scoped_release release;
             pipeline.guarded(action, shared);
           })
      .def(
          "clip_gradients",
          [](PythonPipeline& p, double norm, double max) { clip_gradients(p.engine().gradients(), norm, max); },
          no_gil())
      .def("rank", [](PythonPipeline& p) { return p.engine().rank(); })
      .def("size", [](PythonPipeline& p) { return p.engine().size(); })
      .def("num_stages", [](PythonPipeline& p) { return p.engine().num_stages(); })
      .def("stages", [](PythonPipeline& p) { return p.engine().stages(); })
      .def("input_micro_batches", [](PythonPipeline& p) { return p.engine().input_micro_batches(); })
      .def("loss_micro_batches", [](PythonPipeline& p) { return p.engine().loss_micro_batches(); })
      .def("reduces_mirrors", [](PythonPipeline& p) { return p.engine().reduces_mirrors(); })
      .def("parameters", &parameters_of)
      .def("gradients", &gradients_of)
      .def("gradient_bytes", [](PythonPipeline& p) { return p.engine().gradients().bytes(); })
      .def("statistics", [](PythonPipeline& p) { return p.engine().statistics(); })
      .def("pending_weight_gradients", [](PythonPipeline& p) { return p.engine().pending_weight_gradients(); })
      .def("timeline_header_line", [](PythonPipeline& p) { return header_line(timeline_header(p.engine())); })
      .def("timeline_step_line", [](PythonPipeline& p, std::int64_t iteration) {
        return step_line(iteration, {.statistics = p.engine().statistics()});
      });
}

}  // namespace dualpipe::python
