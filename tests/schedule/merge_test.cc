#include "plugin/schedule/merge.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/schedule/layers.h"
#include "tests/schedule/refusal.h"

namespace dualpipe {
namespace {

using Names = std::vector<std::string>;

Names names(const PairProgram& program, PairStepKind kind) {
  Names names;
  for (const PairStep& step : program.steps) {
    if (step.kind == kind) {
      names.push_back(name_of(program, step.part, step.phase));
    }
  }
  return names;
}

std::string layer(int index, const std::string& part) { return std::to_string(index) + "." + part; }

// The body as DeepSeek-V3 published it, for layer `f` of the forward and layer `b` of the backward.
void add_body(int f, int b, bool last, Names& computes, Names& posts) {
  computes.insert(computes.end(), {layer(b, "mlp(I)"), layer(b, "mlp(W)"), layer(f, "mlp(F)"), layer(b, "attention(I)"),
                                   layer(b, "attention(W)")});
  posts.insert(posts.end(), {layer(f, "dispatch(F)"), layer(b, "dispatch(B)"), layer(f, "combine(F)")});
  if (!last) {
    computes.push_back(layer(f + 1, "attention(F)"));
    posts.push_back(layer(b - 1, "combine(B)"));
  }
}

TEST(Merge, EqualLayersTakeThePublishedBody) {
  for (const double all_to_all : {1.0, 0.9, 0.5}) {
    for (const int layers : {3, 4, 7}) {
      Names computes = {"0.attention(F)"};
      Names posts = {layer(layers - 1, "combine(B)")};
      for (int f = 0; f < layers; ++f) {
        add_body(f, layers - 1 - f, f + 1 == layers, computes, posts);
      }
      const PairProgram merged = merge(moe_layers(layers, all_to_all), moe_layers(layers, all_to_all));
      EXPECT_EQ(names(merged, PairStepKind::kRun), computes) << layers << " layers, all-to-all " << all_to_all;
      EXPECT_EQ(names(merged, PairStepKind::kPost), posts) << layers << " layers, all-to-all " << all_to_all;
      EXPECT_EQ(why_invalid(merged), "");
    }
  }
}

// What each order shows is a matter of costs and dependencies; texts are compared whole.
struct MergeCase {
  const char* name;
  Phases forward;
  Phases backward;
  const char* text;
};

class MergeText : public testing::TestWithParam<MergeCase> {};

TEST_P(MergeText, IsTheExpectedOne) {
  const PairProgram merged = merge(GetParam().forward, GetParam().backward);
  EXPECT_EQ(why_invalid(merged), "");
  EXPECT_EQ("\n" + print(merged), GetParam().text);
}

Phases with(Phases phases, int phase, const PhaseSpec& spec) {
  phases.insert(phases.begin() + phase, spec);
  return phases;
}

Phases without(Phases phases, const std::string& name) {
  std::erase_if(phases, [&](const PhaseSpec& phase) { return phase.name == name; });
  return phases;
}

Phases dense_first(int layers) { return without(without(moe_layers(layers), "0.dispatch"), "0.combine"); }

Phases slow_mlp(int layers) {
  Phases phases = moe_layers(layers, 3);
  for (int layer = 0; layer < layers; ++layer) {
    phases[4 * layer + 2] = compute(std::to_string(layer) + ".mlp", 3);
  }
  return phases;
}

const PhaseSpec kSplits{"0.splits", PhaseKind::kCommunication, 0.1, 0, 0, false};

INSTANTIATE_TEST_SUITE_P(
    Table, MergeText,
    testing::Values(
        // The golden in full: one layer before the body repeats, so that a reader sees the ends.
        MergeCase{"Golden", moe_layers(3), moe_layers(3), R"(
take gradients
take inputs
0.attention(F)  | 2.combine(B)
2.mlp(I)        | 0.dispatch(F)
2.mlp(W)        | 0.dispatch(F), 2.dispatch(B)
0.mlp(F)        | 2.dispatch(B)
2.attention(I)  | 0.combine(F)
2.attention(W)  | 0.combine(F), 1.combine(B)
1.attention(F)  | 1.combine(B)
1.mlp(I)        | 1.dispatch(F)
1.mlp(W)        | 1.dispatch(F), 1.dispatch(B)
1.mlp(F)        | 1.dispatch(B)
1.attention(I)  | 1.combine(F)
1.attention(W)  | 1.combine(F), 0.combine(B)
2.attention(F)  | 0.combine(B)
0.mlp(I)        | 2.dispatch(F)
0.mlp(W)        | 2.dispatch(F), 0.dispatch(B)
2.mlp(F)        | 0.dispatch(B)
0.attention(I)  | 2.combine(F)
send outputs
send gradients
0.attention(W)
)"},
        // Without communication of layer 0 its mlp(F) needs no dispatch, and nothing is posted behind its mlp(I).
        MergeCase{"DenseFirst", dense_first(3), dense_first(3), R"(
take gradients
take inputs
0.attention(F)  | 2.combine(B)
2.mlp(I)
2.mlp(W)        | 2.dispatch(B)
0.mlp(F)        | 2.dispatch(B)
2.attention(I)
2.attention(W)  | 1.combine(B)
1.attention(F)  | 1.combine(B)
1.mlp(I)        | 1.dispatch(F)
1.mlp(W)        | 1.dispatch(F), 1.dispatch(B)
1.mlp(F)        | 1.dispatch(B)
1.attention(I)  | 1.combine(F)
1.attention(W)  | 1.combine(F)
2.attention(F)
0.mlp(I)        | 2.dispatch(F)
0.mlp(W)        | 2.dispatch(F)
2.mlp(F)
0.attention(I)  | 2.combine(F)
send outputs
send gradients
0.attention(W)
)"},
        // All-to-all and mlp take three times as long as attention: some W wait for a gap.
        MergeCase{"SlowMlp", slow_mlp(2), slow_mlp(2), R"(
take gradients
take inputs
0.attention(F)  | 1.combine(B)
1.mlp(I)        | 0.dispatch(F)
0.mlp(F)        | 1.dispatch(B)
1.attention(I)  | 0.combine(F)
1.mlp(W)        | 0.combine(F), 0.combine(B)
1.attention(W)  | 0.combine(F), 0.combine(B)
1.attention(F)  | 0.combine(B)
0.mlp(I)        | 1.dispatch(F)
1.mlp(F)        | 0.dispatch(B)
0.mlp(W)        | 0.dispatch(B), 1.combine(F)
send outputs
0.attention(I)
send gradients
0.attention(W)
)"},
        // One layer beside three: the forward advances at a third of the backward's pace.
        MergeCase{"Unequal", moe_layers(1), moe_layers(3), R"(
take gradients
take inputs
0.attention(F)  | 2.combine(B)
2.mlp(I)        | 0.dispatch(F)
2.mlp(W)        | 0.dispatch(F), 2.dispatch(B)
2.attention(I)  | 0.dispatch(F)
2.attention(W)  | 0.dispatch(F), 1.combine(B)
1.mlp(I)        | 0.dispatch(F)
1.mlp(W)        | 0.dispatch(F), 1.dispatch(B)
0.mlp(F)        | 1.dispatch(B)
1.attention(I)  | 0.combine(F)
send outputs
1.attention(W)  | 0.combine(B)
0.mlp(I)
0.mlp(W)        | 0.dispatch(B)
0.attention(I)
send gradients
0.attention(W)
)"},
        MergeCase{"NoCommunication", dense_layers(2), dense_layers(1), R"(
take inputs
0.attention(F)
take gradients
0.mlp(I)
0.mlp(W)
0.mlp(F)
1.attention(F)
0.attention(I)
send gradients
0.attention(W)
1.mlp(F)
send outputs
)"},
        // The split sizes travel beside mlp(I); the dispatch that needs them goes ahead of the backward's.
        MergeCase{"SplitSizes", with(moe_layers(1), 1, kSplits), with(moe_layers(1), 1, kSplits), R"(
take gradients
take inputs
0.attention(F)  | 0.combine(B)
0.mlp(I)        | 0.splits(F)
0.mlp(W)        | 0.dispatch(F), 0.dispatch(B)
0.mlp(F)        | 0.dispatch(B)
0.attention(I)  | 0.combine(F)
send outputs
send gradients
0.attention(W)
)"},
        // Nothing to compute beside.
        MergeCase{"CommunicationAlone", {communication("0.dispatch")}, {communication("0.dispatch")}, R"(
take inputs
take gradients
(idle)  | 0.dispatch(F), 0.dispatch(B)
send outputs
send gradients
)"},
        // The only phase of the backward has no way back.
        MergeCase{"EmptyBackward", {compute("0.mlp")}, {kSplits}, R"(
take inputs
0.mlp(F)
send outputs
take gradients
send gradients
)"}),
    [](const auto& info) { return info.param.name; });

TEST(InSequence, AwaitsWhereItPosts) {
  EXPECT_EQ(print(in_sequence(with(moe_layers(1), 1, kSplits), with(moe_layers(1), 1, kSplits))),
            R"(take inputs
0.attention(F)
(idle)  | 0.splits(F)
(idle)  | 0.dispatch(F)
0.mlp(F)
(idle)  | 0.combine(F)
send outputs
take gradients
(idle)  | 0.combine(B)
0.mlp(I)
0.mlp(W)
(idle)  | 0.dispatch(B)
0.attention(I)
send gradients
0.attention(W)
)");
}

TEST(Merge, ZeroCostsAreLegal) {
  Phases phases = with(moe_layers(2, 0), 1, kSplits);
  EXPECT_EQ(why_invalid(merge(phases, phases)), "");
  for (PhaseSpec& phase : phases) {
    phase.forward = phase.backward_input = phase.backward_weight = 0;
  }
  EXPECT_EQ(why_invalid(merge(phases, phases)), "");
}

TEST(Merge, RefusesMistakesWithAValueThatWorks) {
  const auto refusal = [](PhaseSpec spec, double slowdown = 1) {
    return refusal_of([&] { merge({compute("0.mlp")}, {spec}, {.slowdown = slowdown}); });
  };
  EXPECT_EQ(refusal({"0.mlp", PhaseKind::kCompute, -1}),
            "[merge] forward of phase '0.mlp' must be a finite number of at least 0, such as 1, got -1");
  EXPECT_EQ(refusal({"0.mlp", PhaseKind::kCompute, 1, std::nan("")}),
            "[merge] backward_input of phase '0.mlp' must be a finite number of at least 0, such as 1, got nan");
  EXPECT_EQ(refusal({"0.mlp", PhaseKind::kCompute, 1, 1, HUGE_VAL}),
            "[merge] backward_weight of phase '0.mlp' must be a finite number of at least 0, such as 1, got inf");
  EXPECT_EQ(refusal(compute("0.mlp"), 0.5),
            "[merge] slowdown must be a finite number of at least 1 (1: none), got 0.5");
  EXPECT_EQ(refusal_of([] { merge({}, {compute("0.mlp")}); }),
            "[merge] the forward must have at least 1 phase, got 0; a single compute works");
  EXPECT_EQ(refusal_of([] { in_sequence({compute("0.mlp")}, {}); }),
            "[merge] the backward must have at least 1 phase, got 0; a single compute works");
}

// A program of one layer without combine, broken in one place.
struct Fault {
  const char* name;
  void (*breaks)(std::vector<PairStep>& steps);
  const char* why;
};

using Kind = PairStepKind;
using Part = PhasePart;

std::size_t find(const std::vector<PairStep>& steps, const PairStep& step) {
  return static_cast<std::size_t>(std::find(steps.begin(), steps.end(), step) - steps.begin());
}

void erase(std::vector<PairStep>& steps, const PairStep& step) {
  steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(find(steps, step)));
}

void move_to(std::vector<PairStep>& steps, const PairStep& step, std::size_t place) {
  erase(steps, step);
  steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(place), step);
}

using Steps = std::vector<PairStep>;
const Fault kFaults[] = {
    // In sequence: take inputs, 0F, post 1F, wait 1F, 2F, send outputs, take gradients, 2I, 2W, post 1B, ...
    {"TwiceRun",
     [](Steps& s) {
       s.push_back({Kind::kRun, Part::kForward, 0});
     },
     "step 14: 0.attention(F) stands twice"},
    {"TwicePosted",
     [](Steps& s) {
       s.push_back({Kind::kPost, Part::kInput, 1});
     },
     "step 14: 0.dispatch(B) stands twice"},
    {"TwiceAwaited",
     [](Steps& s) {
       s.push_back({Kind::kWait, Part::kInput, 1});
     },
     "step 14: 0.dispatch(B) is awaited twice"},
    {"TwiceTaken", [](Steps& s) { s.push_back({Kind::kTakeInputs}); }, "step 14: the inputs are taken twice"},
    {"TwiceSent", [](Steps& s) { s.push_back({Kind::kSendGradients}); }, "step 14: the gradients are sent twice"},
    // Missing.
    {"NoWeight",
     [](Steps& s) {
       erase(s, {Kind::kRun, Part::kWeight, 2});
     },
     "0.mlp(W) stands nowhere"},
    {"NoInputs", [](Steps& s) { erase(s, {Kind::kTakeInputs}); },
     "step 0: 0.attention(F) stands before the inputs are taken"},
    {"NoGradients", [](Steps& s) { erase(s, {Kind::kTakeGradients}); },
     "step 6: 0.mlp(I) stands before the gradients are taken"},
    {"NoOutputs", [](Steps& s) { erase(s, {Kind::kSendOutputs}); }, "the outputs are never sent"},
    {"NoSend", [](Steps& s) { erase(s, {Kind::kSendGradients}); }, "the gradients are never sent"},
    // Out of order.
    {"NotAwaited",
     [](Steps& s) {
       erase(s, {Kind::kWait, Part::kForward, 1});
     },
     "step 3: 0.mlp(F) stands before 0.dispatch(F) is awaited"},
    {"AwaitedFirst",
     [](Steps& s) {
       move_to(s, {Kind::kWait, Part::kForward, 1}, 1);
     },
     "step 1: 0.dispatch(F) is awaited before it is posted"},
    {"WeightFirst",
     [](Steps& s) {
       move_to(s, {Kind::kRun, Part::kWeight, 0}, 7);
     },
     "step 7: 0.attention(W) stands before 0.attention(I)"},
    {"SentFirst", [](Steps& s) { move_to(s, {Kind::kSendOutputs}, 4); },
     "step 4: the outputs are sent before 0.mlp(F)"},
    // No such thing.
    {"NoSuchPhase",
     [](Steps& s) {
       s.push_back({Kind::kRun, Part::kInput, 3});
     },
     "step 14: the backward has 3 phases, but phase 3 is named"},
    {"RunsACommunication",
     [](Steps& s) {
       s.push_back({Kind::kRun, Part::kForward, 1});
     },
     "step 14: 0.dispatch(F) is no such step"},
};

TEST(WhyInvalid, NamesTheFault) {
  const Phases phases = without(moe_layers(1), "0.combine");
  for (const auto& [name, breaks, why] : kFaults) {
    PairProgram program = in_sequence(phases, phases);
    ASSERT_EQ(why_invalid(program), "");
    breaks(program.steps);
    EXPECT_EQ(why_invalid(program), why) << name;
  }
}

}  // namespace
}  // namespace dualpipe
