#include "plugin/schedule/text.h"

#include <gtest/gtest.h>

#include <sstream>

#include "plugin/schedule/generators.h"
#include "tests/schedule/refusal.h"

namespace dualpipe {
namespace {

struct CellCase {
  const char* text;
  Action action;
};

void PrintTo(const CellCase& cell, std::ostream* out) { *out << cell.text; }

class CellText : public testing::TestWithParam<CellCase> {};

TEST_P(CellText, PrintsAndParses) {
  EXPECT_EQ(to_string(GetParam().action), GetParam().text);
  EXPECT_TRUE(parse_action(GetParam().text) == GetParam().action);
}

// Every kind that torch 2.15 writes.
INSTANTIATE_TEST_SUITE_P(Table, CellText,
                         testing::Values(CellCase{"0F0", single(make_op(0, Kind::kForward, 0))},
                                         CellCase{"3B12", single(make_op(3, Kind::kBackward, 12))},
                                         CellCase{"10I7", single(make_op(10, Kind::kBackwardInput, 7))},
                                         CellCase{"2W5", single(make_op(2, Kind::kBackwardWeight, 5))},
                                         CellCase{"1SEND_F0", single(make_op(1, Kind::kSendForward, 0))},
                                         CellCase{"1RECV_F0", single(make_op(1, Kind::kRecvForward, 0))},
                                         CellCase{"1SEND_B9", single(make_op(1, Kind::kSendBackward, 9))},
                                         CellCase{"1RECV_B9", single(make_op(1, Kind::kRecvBackward, 9))},
                                         CellCase{"1WAIT_SEND_F4", single(make_op(1, Kind::kWaitSendForward, 4))},
                                         CellCase{"1WAIT_SEND_B4", single(make_op(1, Kind::kWaitSendBackward, 4))},
                                         CellCase{"6REDUCE_GRAD", single(make_op(6, Kind::kReduceGrad))},
                                         CellCase{"6WAIT_REDUCE_GRAD", single(make_op(6, Kind::kWaitReduceGrad))},
                                         CellCase{"6UNSHARD", single(make_op(6, Kind::kUnshard))},
                                         CellCase{"6RESHARD", single(make_op(6, Kind::kReshard))},
                                         CellCase{"(0F7;7B3)OVERLAP_F_B", overlap(make_op(0, Kind::kForward, 7),
                                                                                  make_op(7, Kind::kBackward, 3))},
                                         // The largest numbers.
                                         CellCase{"65535F2147483646",
                                                  single(make_op(65535, Kind::kForward, 2147483646))}));

struct LooseCase {
  const char* text;
  const char* meaning;
};

class LooseCell : public testing::TestWithParam<LooseCase> {};

TEST_P(LooseCell, IsReadAsMeant) { EXPECT_EQ(to_string(parse_action(GetParam().text)), GetParam().meaning); }

INSTANTIATE_TEST_SUITE_P(Table, LooseCell,
                         testing::Values(LooseCase{"  0F7 ", "0F7"}, LooseCase{"\t0F7\r", "0F7"},
                                         LooseCase{"00F07", "0F7"},
                                         LooseCase{" ( 0F7 ; 7B3 ) OVERLAP_F_B ", "(0F7;7B3)OVERLAP_F_B"}));

constexpr const char* kForm =
    "a cell must be <stage><kind><micro-batch> like 0F7, <stage><kind> like 0REDUCE_GRAD, or a pair like "
    "(0F7;7B3)OVERLAP_F_B, got ";
constexpr const char* kPair = "an overlapped pair must be an F and a B, like (0F7;7B3)OVERLAP_F_B, got ";

struct BadCase {
  const char* text;
  std::string rule;  // What stands between the origin and the quoted cell.
};

void PrintTo(const BadCase& cell, std::ostream* out) { *out << '"' << cell.text << '"'; }

class BadCell : public testing::TestWithParam<BadCase> {};

TEST_P(BadCell, IsRefusedAndQuoted) {
  EXPECT_EQ(refusal_of([] { parse_action(GetParam().text); }),
            "[schedule text] " + GetParam().rule + "\"" + GetParam().text + "\"");
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadCell,
    testing::Values(
        // Something is missing.
        BadCase{"", kForm}, BadCase{"F7", kForm}, BadCase{"0F", kForm}, BadCase{"07", kForm}, BadCase{"F", kForm},
        // Something is too much.
        BadCase{"0F7x", kForm}, BadCase{"0F7 8", kForm}, BadCase{"0F7;", kForm}, BadCase{"x0F7", kForm},
        BadCase{"0F-7", kForm}, BadCase{"-1F7", kForm}, BadCase{"+1F7", kForm}, BadCase{"0F+7", kForm},
        BadCase{"0 F7", kForm}, BadCase{"0F 7", kForm}, BadCase{"0REDUCE_GRAD3", kForm}, BadCase{"0UNSHARD1", kForm},
        // No such kind.
        BadCase{"0X7", kForm}, BadCase{"0f7", kForm}, BadCase{"0SEND7", kForm}, BadCase{"0FF7", kForm},
        BadCase{"0OVERLAP_F_B", kForm},
        // Numbers that do not fit.
        BadCase{"65536F0", "a stage must be at most 65535, got "},
        BadCase{"99999999999999999999F0", "a stage must be at most 65535, got "},
        BadCase{"0F2147483647", "a micro-batch must be at most 2147483646, got "},
        BadCase{"0F99999999999999999999", "a micro-batch must be at most 2147483646, got "},
        // Pairs that are none.
        BadCase{"(0F7;7B3)", kForm}, BadCase{"(0F7;7B3)OVERLAP", kForm}, BadCase{"(0F7;7B3)OVERLAP_F_Bx", kForm},
        BadCase{"(0F7)OVERLAP_F_B", kForm}, BadCase{"(0F7;)OVERLAP_F_B", kForm}, BadCase{"(;7B3)OVERLAP_F_B", kForm},
        BadCase{"(0F7;7B3;1B1)OVERLAP_F_B", kForm}, BadCase{"(0F7;7B3", kForm}, BadCase{"0F7;7B3)OVERLAP_F_B", kForm},
        BadCase{"()OVERLAP_F_B", kForm}, BadCase{"(", kForm}, BadCase{")(;", kForm},
        BadCase{"(7B3;0F7)OVERLAP_F_B", kPair}, BadCase{"(0F7;7I3)OVERLAP_F_B", kPair},
        BadCase{"(0F7;7W3)OVERLAP_F_B", kPair}, BadCase{"(0F7;0F8)OVERLAP_F_B", kPair}));

TEST(RowText, EmptyCellsAreIdleSlots) {
  EXPECT_EQ(print_row(parse_row("0F0,, ,0F1,,")), "0F0,0F1");
  EXPECT_EQ(print_row(parse_row("")), "");
  EXPECT_EQ(print_row(parse_row(",,")), "");
}

TEST(RowText, RefusalNamesTheColumn) {
  EXPECT_EQ(refusal_of([] { parse_row("0F0,,0X1"); }), std::string("[schedule text] column 2: ") + kForm + "\"0X1\"");
}

TEST(RowText, RowsPrintOneLineEach) {
  std::ostringstream text;
  print_rows(text, {parse_row("0F0,0B0"), {}, parse_row("1F0")});
  EXPECT_EQ(text.str(), "0F0,0B0\n\n1F0\n");
}

TEST(TorchText, ReceivesStandByTheirUseAndReductionsAreWaitedFor) {
  std::ostringstream text;
  print_for_torch(text, lower(generate_1f1b({2, 2})));
  EXPECT_EQ(text.str(),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0RECV_B1,0B1,0WAIT_SEND_F1,0REDUCE_GRAD,"
            "0WAIT_REDUCE_GRAD\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1WAIT_SEND_B0,"
            "1WAIT_SEND_B1\n");
}

TEST(TorchText, WhatTorchRefusesIsRefusedHere) {
  std::ostringstream text;
  EXPECT_EQ(refusal_of([&] {
              print_for_torch(text, lower(generate_dualpipe({2, 4})));
            }),
            "[dualpipe] torch takes schedules whose stages each stand on one rank, got stages on two; dualpipev works");
  EXPECT_EQ(refusal_of([&] {
              print_for_torch(text, lower(generate_zb1p({2, 2}), {.defer_tail_weight_gradients = true}));
            }),
            "[zb1p] torch takes rows with all weight gradients in them, got a deferred 0W1; "
            "defer_tail_weight_gradients: false works");
  EXPECT_EQ(text.str(), "");
}

}  // namespace
}  // namespace dualpipe
