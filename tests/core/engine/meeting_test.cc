// SPDX-License-Identifier: Apache-2.0
//
// The agreement of ranks on who goes first, for all pairs of announced
// activities. All ranks come to the same result.

#include "core/engine/transfer/meeting.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/thread_ranks.h"

namespace shard::meeting_test {
namespace {

constexpr Activity kReduce = Activity::kReduce;
constexpr Activity kGather = Activity::kGather;
constexpr Activity kStep = Activity::kStep;
constexpr Activity kJoin = Activity::kJoin;

Note NoteOf(Activity activity, int32_t unit = -1) {
  Note note;
  note.activity = activity;
  note.unit = unit;
  note.active = activity == kJoin ? 0 : 1;
  return note;
}

std::string NameOf(int32_t unit) { return StrCat("unit ", unit); }

StatusOr<Conclusion> ConcludeFor(const std::vector<Note>& notes, int rank,
                                 bool allow_missing) {
  return Conclude(notes, rank, allow_missing, NameOf);
}

// Expects the same leader on all ranks; `follows` is by rank.
void ExpectLed(const std::vector<Note>& notes, bool allow_missing,
               int32_t leader, const std::vector<bool>& follows,
               int32_t active) {
  for (size_t r = 0; r < notes.size(); ++r) {
    const auto conclusion =
        ConcludeFor(notes, static_cast<int>(r), allow_missing);
    ASSERT_OK(conclusion);
    EXPECT_EQ(conclusion->leader, leader);
    EXPECT_EQ(conclusion->follows, follows[r]) << "rank " << r;
    EXPECT_EQ(conclusion->active, active);
  }
}

void ExpectDesync(const std::vector<Note>& notes, bool allow_missing,
                  int differs, std::initializer_list<std::string_view> parts) {
  for (size_t r = 0; r < notes.size(); ++r) {
    const auto conclusion =
        ConcludeFor(notes, static_cast<int>(r), allow_missing);
    ExpectError(conclusion, StatusCode::kDesync, parts);
    EXPECT_EQ(conclusion.status().rank(), differs);
  }
}

TEST(ConcludeTest, AllTheSame) {
  for (const bool allow_missing : {false, true}) {
    for (const Note& note :
         {NoteOf(kReduce, 2), NoteOf(kGather, 2), NoteOf(kStep),
          NoteOf(Activity::kSummon), NoteOf(Activity::kReplan)}) {
      ExpectLed({note, note, note}, allow_missing, 0, {false, false, false}, 3);
    }
    const Note join = NoteOf(kJoin);
    ExpectLed({join, join}, allow_missing, 0, {false, false}, 0);
    ExpectLed({NoteOf(kStep)}, allow_missing, 0, {false}, 1);
  }
}

TEST(ConcludeTest, RanksInJoinFollow) {
  const Note join = NoteOf(kJoin);
  for (const bool allow_missing : {false, true}) {
    for (const Note& note :
         {NoteOf(kReduce, 1), NoteOf(kGather, 1), NoteOf(kStep)}) {
      ExpectLed({join, note, join, note}, allow_missing, 1,
                {true, false, true, false}, 2);
    }
    ExpectDesync({join, NoteOf(Activity::kSummon)}, allow_missing, 0,
                 {"rank 1 summons", "rank 0 waits in join"});
    ExpectDesync({NoteOf(Activity::kReplan), join}, allow_missing, 1,
                 {"rank 0 changes groups", "rank 1 waits in join"});
  }
}

TEST(ConcludeTest, DifferentThings) {
  ExpectDesync({NoteOf(kReduce, 1), NoteOf(kReduce, 2)}, false, 1,
               {"rank 0 reduces the gradients of unit 1",
                "rank 1 reduces the gradients of unit 2"});
  ExpectDesync({NoteOf(kStep), NoteOf(kStep), NoteOf(kReduce, 2)}, false, 0,
               {"rank 2 reduces the gradients of unit 2", "rank 0 steps"});
  ExpectDesync({NoteOf(kGather, 4), NoteOf(kReduce, 4)}, false, 1,
               {"rank 0 gathers the parameters of unit 4",
                "rank 1 reduces the gradients of unit 4"});
  for (const bool allow_missing : {false, true}) {
    ExpectDesync({NoteOf(kGather, 1), NoteOf(kGather, 2)}, allow_missing, 1,
                 {"rank 0 gathers the parameters of unit 1",
                  "rank 1 gathers the parameters of unit 2"});
    ExpectDesync({NoteOf(kStep), NoteOf(Activity::kSummon)}, allow_missing, 1,
                 {"rank 0 steps", "rank 1 summons full parameters"});
    // A rank in join beside them changes nothing.
    ExpectDesync({NoteOf(kJoin), NoteOf(kGather, 1), NoteOf(kGather, 2)},
                 allow_missing, 2, {"rank 1 gathers", "rank 2 gathers"});
  }
}

TEST(ConcludeTest, MissingGradients) {
  // Reductions may come in any order; the lowest rank's goes first.
  ExpectLed({NoteOf(kReduce, 5), NoteOf(kReduce, 2), NoteOf(kReduce, 5)}, true,
            0, {false, true, false}, 3);
  // A reduction goes before a gather and before a step.
  ExpectLed({NoteOf(kGather, 3), NoteOf(kStep), NoteOf(kReduce, 2)}, true, 2,
            {true, true, false}, 3);
  ExpectLed({NoteOf(kStep), NoteOf(kGather, 3)}, true, 1, {true, false}, 2);
  ExpectLed({NoteOf(kJoin), NoteOf(kStep), NoteOf(kReduce, 1)}, true, 2,
            {true, true, false}, 2);
  ExpectDesync({NoteOf(kReduce, 1), NoteOf(Activity::kReplan)}, true, 1,
               {"rank 0 reduces", "rank 1 changes groups"});
  // Ranks that gather while others step have to gather the same unit.
  ExpectDesync({NoteOf(kStep), NoteOf(kGather, 3), NoteOf(kGather, 2)}, true, 2,
               {"rank 1 gathers", "rank 2 gathers"});
}

Note ZeroedNote(int32_t unit, int64_t zeroed) {
  Note note = NoteOf(kReduce, unit);
  note.zeroed = zeroed;
  return note;
}

TEST(ConcludeTest, GradientsFromBeforeZeroGrad) {
  // Gradients from before zero_grad go first, and are not reduced together with
  // those from after it.
  ExpectLed({ZeroedNote(2, 1), ZeroedNote(2, 0), ZeroedNote(2, 0)}, true, 1,
            {true, false, false}, 3);
  ExpectLed({ZeroedNote(2, 1), NoteOf(kStep), ZeroedNote(3, 0)}, true, 2,
            {true, true, false}, 3);
  ExpectLed({ZeroedNote(2, 1), ZeroedNote(2, 1)}, true, 0, {false, false}, 2);
  // Where no gradients may be missing, no rank may be a zero_grad ahead of
  // another.
  ExpectLed({ZeroedNote(2, 1), ZeroedNote(2, 1)}, false, 0, {false, false}, 2);
  ExpectDesync({ZeroedNote(2, 0), ZeroedNote(2, 1)}, false, 1,
               {"rank 0 reduces the gradients of unit 2",
                "rank 1 reduces the gradients of unit 2 (zero_grad calls since "
                "the last step: 1)"});
}

// All ranks agree, whatever they announce, and at least one of them does what
// it announced.
TEST(ConcludeTest, EveryThreeNotes) {
  const std::vector<Note> all = {
      NoteOf(kReduce, 0),        NoteOf(kReduce, 1), NoteOf(kGather, 0),
      NoteOf(kGather, 1),        NoteOf(kStep),      NoteOf(kJoin),
      NoteOf(Activity::kSummon), ZeroedNote(0, 1)};
  for (const bool allow_missing : {false, true}) {
    for (const Note& a : all) {
      for (const Note& b : all) {
        for (const Note& c : all) {
          const std::vector<Note> notes = {a, b, c};
          const auto first = ConcludeFor(notes, 0, allow_missing);
          bool someone = false;
          for (int rank = 0; rank < 3; ++rank) {
            const auto other = ConcludeFor(notes, rank, allow_missing);
            ASSERT_EQ(other.status().ToString(), first.status().ToString());
            if (!other.ok()) continue;
            EXPECT_EQ(other->leader, first->leader);
            someone = someone || !other->follows;
            EXPECT_FALSE(rank == other->leader && other->follows);
          }
          EXPECT_EQ(someone, first.ok());
        }
      }
    }
  }
}

TEST(MeetingTest, ErrorOfOneRankIsTheErrorOfAll) {
  RunThreadRanks(3, [](const auto& comm) {
    Meeting meeting(comm.get(), false, NameOf);
    const Deadline deadline = Deadline::After(10);
    const Status local =
        comm->rank() == 1 ? InvalidArgument("wrong here") : Status();
    const auto failed = meeting.Meet(NoteOf(kStep), local, deadline);
    ExpectInvalid(failed, {"rank 1", "wrong here"});
    EXPECT_EQ(failed.status().rank(), 1);
    EXPECT_EQ(meeting.notes()[1].failed, 1);
    EXPECT_EQ(meeting.notes()[2].failed, 0);
    // The ranks meet again after the error.
    const auto met =
        meeting.Meet(comm->rank() == 2 ? NoteOf(kJoin) : NoteOf(kGather, 6),
                     Status(), deadline);
    ASSERT_OK(met);
    EXPECT_EQ(met->leader, 0);
    EXPECT_EQ(met->follows, comm->rank() == 2);
    EXPECT_EQ(meeting.notes()[1].unit, 6);
  });
}

}  // namespace
}  // namespace shard::meeting_test
