"""Each protocol rule, taken out alone, changes an answer: that of one peer that is asked one thing,
or of one pure function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from swarmfree.protocol.names import ABSENT
from tests.mutants import (
    removals,
    removals_adoption,
    removals_audit,
    removals_batch,
    removals_begin,
    removals_cuts,
    removals_data,
    removals_directory,
    removals_donors,
    removals_end,
    removals_evidence,
    removals_lead,
    removals_member,
    removals_move,
    removals_pause,
    removals_return,
    situations_begin,
    tables_adoption,
    tables_audit,
    tables_batch,
    tables_copies,
    tables_cuts,
    tables_data,
    tables_directory,
    tables_donors,
    tables_end,
    tables_evidence,
    tables_kin,
    tables_lead,
    tables_member,
    tables_move,
    tables_pause,
    tables_return,
    tables_roster,
)
from tests.mutants.alone import TERM
from tests.mutants.removals import Removal
from tests.mutants.test_mutants import MUTANTS

REMOVALS = (
    removals,
    removals_adoption,
    removals_audit,
    removals_batch,
    removals_begin,
    removals_cuts,
    removals_data,
    removals_directory,
    removals_donors,
    removals_end,
    removals_evidence,
    removals_member,
    removals_move,
    removals_pause,
    removals_lead,
    removals_return,
)


@dataclass(frozen=True, slots=True)
class Row:
    """A rule, and a question whose answer depends on it.

    Args:
        rule: takes it out.
        table: asks.
        right: the answer where the rule holds.
    """

    rule: Removal
    table: Callable[[], object]
    right: object


LOOKED_AROUND = [
    *((0, False), (0, False), (5, True), (5, True), (94, False)),
    *((90, False), (0, False), (90, False), (0, False), (99, False)),
]
SLOW_DIRECTORY = [(0, False), (2, False), (5, True), (2, True)]
REBUILT = ((-1, 0, (-1,)), (-1, 5, (2,)), False)
ROWS = (
    # a member
    Row(removals_member.order_of_revisions, tables_member.older_open, ["Promise", "superseded"]),
    Row(removals_member.sealed_record_at_open, tables_member.stored_before_open, 7.0),
    Row(removals_member.vote_outlives_the_state, tables_member.stored_before_load, 7.0),
    Row(removals_member.coordinator_that_is_heard, tables_member.claim_beside_a_coordinator, "fresh"),
    Row(removals_member.only_asking, tables_member.only_asked, "Sealed"),
    Row(removals_member.order_of_rolls, tables_member.older_roll, ["Report", "superseded"]),
    Row(removals_member.roll_of_a_renounced_term, tables_member.roll_after_a_later_term, ["Report", "superseded"]),
    Row(removals_member.contributions_again, tables_member.roll_of_a_later_attempt, [1, 2]),
    Row(removals_member.order_of_seals, tables_member.older_seal, ["Sealed", "superseded"]),
    Row(removals_member.term_of_a_seal, tables_member.word_of_an_old_term, ["behind"] * 3),
    Row(removals.term_at_members, tables_member.word_of_an_old_term, ["behind"] * 3),
    Row(removals_member.lineage_of_a_seal, tables_member.seal_of_another_lineage, ["not_yet"]),
    Row(removals_member.renounced_vote, tables_member.second_vote, "behind"),
    Row(removals_member.highest_renounced_promise, tables_member.second_vote_after_coming_and_going, "behind"),
    Row(removals_member.term_of_the_successor, tables_member.call_to_come_back_that_comes_twice, "HeartbeatAnswer"),
    Row(removals_member.term_of_the_successor, tables_member.call_back_by_the_one_that_was_left, "HeartbeatAnswer"),
    Row(removals_member.abandoned_terms, tables_member.word_of_a_beaten_lineage, ["behind"] * 2),
    Row(removals_member.base_outlives_the_work, tables_member.state_of_one_who_came_back, "b0"),
    Row(removals_member.windows_of_this_source, tables_member.window_of_another_share, (True, (0,))),
    Row(removals_member.share_of_the_promised_plan, tables_member.share_of_a_plan_that_is_promised, [True, False]),
    Row(removals_member.windows_of_the_newest_plan, tables_member.windows_of_a_smaller_share, [(0, 1), (0,), ()]),
    Row(removals_member.windows_begun_once, tables_member.plans_of_one_base, []),
    Row(removals_member.promise_after_a_wait, tables_member.overtaken_open, ("behind", 2)),
    Row(removals_member.stalled_coordinator, tables_member.coordinator_gets_nowhere, False),
    Row(removals_member.silence_that_is_no_stall, tables_member.coordinator_falls_silent, (False, False)),
    Row(removals_member.state_before_the_step, tables_member.step_from_another_state, ("gone", 0)),
    Row(removals_member.digest_of_an_average, tables_member.average_of_a_sibling, "gone"),
    Row(removals_member.round_of_a_missed_average, tables_member.average_of_the_round_before, 0),
    Row(removals_member.missed_parts_at_once, tables_member.time_of_a_missed_average, 1),
    Row(
        removals_member.average_asked_for_again,
        tables_member.average_that_is_lost_on_its_way,
        [(True, 1), (True, 2), (False, 2), (True, 2), (False, 1)],
    ),
    Row(removals_member.average_of_those_that_reported, tables_member.average_that_strangers_keep, ("Committed", ["c"])),
    Row(removals_member.size_of_a_contribution, tables_member.short_contribution, ("c", True)),
    Row(removals_member.place_on_its_way, tables_member.work_of_one_that_moved, ["not_yet", "let"]),
    Row(removals_member.plan_of_its_own, tables_member.claim_to_one_whose_device_hangs, [("let", True), ("forbidden", False)]),
    Row(
        removals_member.first_plan_of_its_own,
        tables_member.claim_to_one_whose_device_hangs,
        [("let", True), ("forbidden", False)],
    ),
    Row(removals.base_in_the_key, tables_member.work_of_another_base, "stale"),
    Row(removals.own_list_against_the_roll, tables_member.roll_of_another_sum, "OtherPartialSums"),
    Row(removals.frozen_partial_sums, tables_member.sum_in_a_roll, 1),
    Row(removals_member.sibling_of_one_that_is_past, tables_member.hop_past_one_that_is_further, ["back", "past"]),
    Row(removals_member.share_begun_by_itself, tables_member.share_that_no_open_begins_anew, [True] * 3),
    Row(removals_member.share_put_back, tables_member.share_that_a_stage_refused, [True, True]),
    Row(removals.half_contributions, tables_member.contribution_of_a_source, []),
    Row(removals.embedding_half_again, tables_member.share_that_is_begun_anew, [[], [(3,)]]),
    Row(removals.sum_of_its_own, tables_member.share_of_two_that_went, [(0, 3), (1,), (2,)]),
    Row(removals_member.share_of_a_loss, tables_member.loss_of_another_share, ["LossAnswer", "stale"]),
    Row(removals_member.term_of_a_roll, tables_member.roll_of_an_old_term, "behind"),
    Row(removals_member.lineage_of_a_step, tables_member.step_of_another_lineage, "gone"),
    Row(removals_member.average_of_a_stage_that_is_left, tables_member.average_while_another_stage_is_built, ["gone"] * 2),
    Row(removals_member.average_that_was_asked_for, tables_member.average_of_another_digest, "gone"),
    Row(removals_member.members_of_a_roll, tables_member.contribution_of_a_stranger, "stale"),
    Row(
        removals_member.build_for_another_coordinator,
        tables_member.build_that_nobody_told_of,
        ["gone", "gone", "Promise"],
    ),
    Row(
        removals_member.build_that_a_plan_does_not_name,
        tables_member.build_that_its_coordinator_has_not_heard_of,
        ["gone", "Promise"],
    ),
    Row(removals_member.copy_in_a_plan, tables_member.copy_that_was_opened, [True, False]),
    Row(
        removals_member.copy_that_a_record_begins_with,
        tables_member.copy_that_cannot_step,
        [("gone", True), ("gone", False)],
    ),
    # a coordinator
    Row(removals_lead.source_that_is_only_called_for, tables_lead.sources_that_are_all_silent, [["a"], ["e"]]),
    Row(removals_lead.state_that_a_promise_tells, tables_lead.step_that_a_promise_lacks, "Stay"),
    Row(removals_lead.majority_for_open, tables_lead.open_without_promises, "waits"),
    Row(removals_lead.promise_of_what_gave_way, tables_lead.loaded_as_others_promise, (False, True)),
    Row(removals.majority_for_seal, tables_lead.seal_without_votes, "waits"),
    Row(
        removals_lead.forced_after_proof_of_death,
        tables_lead.forced_after_a_finish,
        [[True, False], [False, True], [False, False]],
    ),
    Row(removals_lead.forced_but_once, tables_lead.forced_once, "deposed"),
    Row(removals_lead.silence_without_majority, tables_lead.without_majority, "deposed"),
    Row(removals_lead.lineage_of_a_vote, tables_lead.vote_on_a_lineage_that_was_left, 1.0),
    Row(removals_lead.highest_sealed_record, tables_lead.record_with_the_highest_position, 2.0),
    Row(removals_lead.silent_joiners, tables_lead.joiner_that_is_silent, [False, True]),
    Row(removals_lead.old_state_that_is_called_for, tables_lead.old_state_of_a_silent_joiner, [True, False]),
    Row(removals_lead.joiners_that_cannot_step, tables_lead.joiner_that_cannot_step, ["Commit", "Build"]),
    Row(removals_lead.share_of_this_plan, tables_lead.share_of_an_earlier_plan, False),
    Row(removals.vote_of_an_incarnation, tables_lead.votes_of_a_later_life, False),
    Row(removals_lead.senior_half, tables_lead.half_without_the_senior, [False, True]),
    Row(removals_lead.proven_ends, tables_lead.all_who_live, True),
    Row(removals_lead.proof_before_the_claim, tables_lead.record_beside_the_dead, (0,)),
    Row(removals_lead.nobody_decides_for_nobody, tables_lead.nobody_to_decide, False),
    Row(removals_lead.states_alike, tables_lead.states_of_siblings, "StatesDiffer"),
    Row(removals_lead.pause_after_an_unreachable_member, tables_lead.pause_after_a_round, [0.1, 0.0]),
    Row(removals_lead.averages_alike, tables_lead.averages_of_siblings, "str"),
    Row(removals_lead.average_of_everybody, tables_lead.sibling_without_the_average, "str"),
    Row(removals_lead.average_that_somebody_has, tables_lead.average_of_who_is_gone, [0, 2]),
    Row(removals.fenced_partial_sums, tables_lead.sums_of_a_fenced_member, []),
    Row(removals_lead.seniority_in_a_record, tables_lead.order_of_the_electorate, "c"),
    Row(removals_lead.vouched_voters, tables_lead.voter_with_a_built_state, False),
    Row(removals_lead.state_of_the_newest_base, tables_lead.planned_member_of_a_rebuilt_stage, [True, False]),
    Row(removals_lead.sums_that_overlap, tables_lead.source_with_an_overlapping_sum, [((2,), ()), ((1, 3, 0), (0,))]),
    Row(
        removals_lead.sums_that_are_not_told,
        tables_lead.source_that_does_not_tell,
        [(3, [((), ()), ((2, 3, 0, 1), (0, 1))])] * 2,
    ),
    Row(removals_lead.redone_for_nobody, tables_lead.stages_that_are_redone, [0, 2]),
    Row(
        removals_lead.state_that_a_record_begins_with,
        tables_lead.voter_that_missed_a_record,
        [(True, True), (False, False)] * 2,
    ),
    # its audits
    Row(removals_audit.voice_of_the_silent, tables_audit.accused_while_siblings_are_silent, ("", "b c d")),
    Row(removals_audit.due_until_audited, tables_audit.audited_in_vain, ({"c"}, set())),
    Row(removals_audit.due_until_audited, tables_audit.gone_as_it_is_found_out, (("", ""), {"c"})),
    Row(removals_audit.base_of_a_convict, tables_audit.gone_as_it_is_found_out, (("", ""), {"c"})),
    Row(removals_audit.account_of_a_base, tables_audit.no_account_again_and_again, ([False, False, True], False)),
    Row(removals_audit.contributions_that_are_shown, tables_audit.contribution_that_is_not_shown, [False, True]),
    Row(removals_audit.whole_account, tables_audit.account_with_a_gap, (0, 1)),
    Row(removals_audit.slow_auditors_last, tables_audit.auditor_that_never_finishes, 1),
    Row(removals_audit.vote_of_the_convicted, tables_return.vote_of_an_excluded_peer, [False, True]),
    Row(removals_audit.leap_in_a_disputed_base, tables_audit.leap_after_a_dispute, [3, 3, 0]),
    Row(removals_audit.undisturbed_borders, tables_audit.accounts_at_a_border, [True] + [False] * 3 + [True, False, False]),
    # a batch that is set on the way
    Row(removals_batch.data_goes_on, tables_batch.place_after_a_set_batch, [26, 33]),
    Row(removals_batch.rate_follows_the_batch, tables_batch.step_with_a_set_batch, (1.5, 0.667)),
    Row(removals_batch.mean_of_the_batch, tables_batch.step_with_a_set_batch, (1.5, 0.667)),
    Row(removals_batch.mean_of_the_batch, tables_batch.loss_of_a_set_batch, (2.0, 2.0)),
    Row(removals_data.next_part_of_a_dataset, tables_data.two_epochs_of_a_larger_dataset, 40),
    Row(removals_data.block_of_the_index, tables_data.block_of_another_shard, "refused"),
    Row(removals_data.late_data, tables_data.source_that_waits_for_its_data, [False, True]),
    Row(removals_batch.batch_in_the_record, tables_batch.batch_of_the_next_record, [(6, 32), (6, 38)]),
    # its roster, and two coordinators
    Row(removals_lead.patience_with_the_last, tables_roster.silence_of_the_last, True),
    Row(removals_lead.open_to_who_is_back, tables_roster.back_after_an_open, (True, False)),
    Row(removals_lead.open_to_who_dropped_it, tables_roster.plan_dropped_since, [math.inf, 3.0, math.inf, math.inf]),
    Row(removals_lead.call_after_a_leave, tables_roster.missed_beside_a_leaver, True),
    Row(removals_lead.call_for_who_was_missed, tables_roster.missed_at_a_takeover, True),
    Row(removals_lead.forgotten_as_it_rejoins, tables_roster.sibling_lost_before_it_rejoins, (True, True)),
    Row(removals_lead.absent_in_a_record, tables_roster.absent_at_a_commit, (True, False)),
    Row(removals_lead.refused_is_dead, tables_roster.end_of_the_last, False),
    Row(removals_lead.stranger_is_dead, tables_roster.word_of_a_stranger, True),
    Row(removals_lead.older_state_of_the_silent, tables_roster.silence_of_one_behind, [True, False]),
    Row(removals_lead.call_before_it_is_given_up, tables_roster.silence_long_before_it_is_called_for, [False, True]),
    Row(
        removals_lead.copy_of_what_made_do,
        tables_roster.silence_of_one_that_makes_do,
        [(False, False), (True, False), (True, False)],
    ),
    Row(removals_lead.called_once, tables_roster.silence_of_one_that_makes_do, [(False, False), (True, False), (True, False)]),
    Row(removals_lead.silent_copier, tables_roster.silence_of_one_that_copies, [(True, 3), (False, -1)]),
    *(
        Row(removal, tables_roster.refusal_beside_a_sibling, [(True, False), (True, False), (False, False)])
        for removal in (removals_lead.refused_before_it_knew, removals_lead.refused_again_and_again)
    ),
    Row(
        removals_lead.gone_before_a_word,
        tables_roster.refusal_of_one_that_has_told_nothing,
        [(True, False, 0), (False, False, -1), (True, True, -1)],
    ),
    Row(removals_lead.refused_before_it_knew, tables_roster.refusal_of_one_that_stands_by, [True, False]),
    Row(removals_lead.copiers_go_first, tables_roster.holder_beside_many_copiers, True),
    Row(removals_lead.own_promise_of_a_higher_term, tables_roster.higher_term_of_its_own, (False, [])),
    Row(
        removals_lead.votes_before_others_rejoin,
        tables_roster.higher_term_of_another_voter,
        [(False, []), (True, ["Goodbye"])],
    ),
    Row(removals_lead.asked_for_others_alone, tables_roster.higher_term_of_two_that_left, (True, True, 1)),
    Row(removals_lead.barred_and_alone, tables_roster.end_of_those_beside_a_barred_one, (True, False)),
    Row(removals_lead.sibling_is_enough, tables_roster.silence_beside_a_sibling, False),
    Row(removals_lead.sibling_of_today, tables_roster.silence_beside_an_older_state, True),
    Row(removals_lead.step_since_its_answer, tables_roster.silence_after_a_step, True),
    Row(removals_lead.called_for_again, tables_roster.silence_until_a_sibling_comes, [True, False]),
    Row(removals_lead.silent_beside_a_joiner, tables_return.silent_holder_of_a_copied_stage, [False, True]),
    Row(removals_lead.members_before_the_first_record, tables_roster.higher_term_before_the_first_record, [True, False]),
    Row(removals_lead.vote_to_depose, tables_roster.higher_term_without_a_vote, (True, True)),
    Row(removals_lead.lineage_of_a_deposer, tables_roster.higher_term_of_another_lineage, [False, True]),
    Row(removals_lead.lineage_of_its_leader, tables_roster.higher_term_of_one_that_builds, True),
    Row(removals_lead.past_of_a_decision, tables_lead.hello_before_all_are_told, True),
    Row(removals_lead.holder_of_a_higher_term, tables_roster.higher_term_of_a_sole_holder, (True, True, True, False, False)),
    Row(removals_lead.patience_with_a_led_holder, tables_roster.higher_term_of_a_sole_holder, (True, True, True, False, False)),
    Row(removals_lead.one_life_at_a_time, tables_roster.earlier_life, False),
    Row(removals_lead.later_life_stays, tables_roster.hello_of_an_earlier_life, (True, False)),
    Row(removals_lead.losses_only_grow, tables_roster.losses_that_were_overtaken, 2),
    Row(removals_lead.losses_only_grow, tables_roster.windows_that_a_later_plan_took, [True, False, False]),
    Row(removals_lead.lateness_beside_a_sibling, tables_roster.late_device, (False, True)),
    Row(removals_lead.lateness_of_the_last, tables_roster.late_device, (False, True)),
    Row(removals_lead.fewer_forced_first, tables_roster.more_iterations_but_forced, False),
    Row(removals_lead.lineages_before_wholeness, tables_roster.whole_but_forced, False),
    Row(removals_lead.fewer_forced_records, tables_lead.peer_of_another_lineage, ["outranked", "Place", "Place", "Place"]),
    Row(removals_lead.decided_before_it_is_told, tables_lead.rival_while_a_record_is_told, [False] * 4),
    Row(removals_lead.loss_behind_a_bar, tables_roster.bar_that_ends_after_the_loss, True),
    Row(removals_lead.state_behind_a_bar, tables_roster.holder_whose_bar_has_just_ended, True),
    Row(removals_lead.iteration_of_a_joiner, tables_lead.joiner_of_a_successor, [3]),
    Row(removals_lead.beginning_never_wins, tables_roster.beginning_of_this_one, False),
    Row(removals_lead.word_alone, tables_lead.word_that_is_refuted, [(True, True), (True, True)]),
    Row(removals_lead.rival_that_calls_again, tables_lead.rival_that_never_gives_way, [(True, True), (True, True)]),
    Row(removals_return.holder_that_has_woken, tables_lead.holder_that_is_called_in_vain, [True, True, False]),
    *(
        Row(removed, tables_lead.stranger_that_follows_nobody, [(y, y) for y in (1, 1, 0, 0, 0, 1, 1, 0)])
        for removed in (
            removals_lead.leaderless_stranger,
            removals_lead.stranger_that_has_not_noticed,
            removals_lead.stranger_whose_coordinator_is_gone,
        )
    ),
    Row(removals_lead.members_of_a_rival, tables_lead.rival_that_gives_way, [True, True, True, False, True, False]),
    Row(removals_lead.word_of_who_replaces, tables_lead.leaver_beside_a_dead_sibling, [True, False]),
    Row(removals_lead.whatever_the_way, tables_lead.ways_that_wait_for_members, ["CopyKept", "Restore", "Stay", "CopyNeighbour"]),
    Row(
        removals_lead.stage_on_a_disk_that_is_away,
        tables_lead.lost_stage_of_a_whole_set,
        [[True] * 8, [False, False, True, True, False, True, False, True]],
    ),
    Row(removals_lead.nothing_anew_before_giving_way, tables_lead.stage_lost_before_giving_way, [False, True]),
    Row(removals_lead.lead_of_a_stranger, tables_roster.rivals_that_had_a_place_and_not, [True, False, True] * 2),
    Row(removals_lead.leader_of_those_that_split_off, tables_roster.rivals_that_others_follow, [[True, False], [False] * 2]),
    *(
        Row(removed, tables_roster.rivals_that_a_founder_follows, [[True, False], [True, True], [False, False]])
        for removed in (removals_lead.word_of_the_founder, removals_lead.word_of_who_is_excluded)
    ),
    *(
        Row(removed, tables_roster.rivals_that_are_excluded, [[True] * 4, [False] * 4])
        for removed in (removals_lead.founder_that_is_excluded, removals_lead.voter_that_is_excluded)
    ),
    Row(removals_lead.higher_term_of_a_lineage, tables_roster.two_terms_of_one_lineage, True),
    *(
        Row(removed, tables_roster.kin_of_whom_one_is_no_voter, [False, True, False, True, False, True, True])
        for removed in (
            removals_lead.kin_by_terms_alone,
            removals_lead.kin_that_takes_itself_for_a_voter,
            removals_lead.kin_that_voters_follow,
        )
    ),
    Row(removals_lead.kin_that_anybody_follows, tables_kin.kin_that_see_each_other, {0: 8, 1: 856}),
    Row(removals_lead.kin_whose_voters_rebuild, tables_kin.kin_that_see_each_other, {0: 8, 1: 856}),
    Row(removals_lead.run_that_ended, tables_roster.run_that_ends_elsewhere, [("Farewell", 1, [0]), ("stale", 0, [])]),
    Row(
        removals_lead.pause_with_what_no_disk_has,
        tables_roster.pause_that_a_disk_refuses,
        [
            *[("Farewell", ["0 through"])] * 2,
            ("failed", []),
            ("Farewell", ["0 through"]),
            ("Farewell", ["1 through; but what this peer holds lies on no disk that it knows of, and is lost"]),
        ],
    ),
    Row(removals_lead.look_before_the_end, tables_roster.end_before_a_second_look, False),
    Row(removals_lead.record_before_leaving, tables_roster.lead_handed_over_while_a_record_is_out, [16, 41, 0, 15]),
    Row(removals_lead.look_around_before_the_end, tables_roster.end_while_others_are_announced, LOOKED_AROUND),
    Row(removals_lead.look_around_before_the_end, tables_roster.end_while_the_directory_is_slow, SLOW_DIRECTORY),
    Row(removals_lead.look_around_for_leaders_alone, tables_roster.end_while_others_are_announced, LOOKED_AROUND),
    Row(removals_lead.look_around_without_end, tables_roster.end_while_others_are_announced, LOOKED_AROUND),
    Row(removals_lead.hope_of_others, tables_roster.end_while_somebody_hopes, [0, 14, 90, 90]),
    Row(removals_lead.hope_between_hellos, tables_roster.end_while_somebody_hopes, [0, 14, 90, 90]),
    Row(removals_lead.hope_in_silence, tables_roster.told_while_somebody_hopes, ["", "a lineage that counts more", ""]),
    Row(removals_lead.strangers_that_may_end, tables_roster.strangers_at_the_end, ["b", "w"]),
    Row(removals_lead.next_stranger, tables_roster.rival_behind_those_that_have_ended, True),
    Row(removals_lead.next_stranger, tables_lead.strangers_that_are_met, [["x", "y"], []]),
    Row(removals_lead.rival_that_is_looked_at, tables_roster.two_rivals, False),
    Row(removals_lead.digest_of_a_joiner, tables_roster.joiner_with_another_state, False),
    Row(removals_lead.bar_for_arithmetic, tables_roster.state_that_differs_again, True),
    # taking the lead, and coming back
    Row(removals_return.wait_before_forcing, tables_return.candidate_without_majority, (False, False)),
    Row(removals_return.word_of_who_follows_another, tables_return.who_is_heard_by_those_that_stop, [True, False, True, False]),
    *(
        Row(rule, tables_return.force_where_others_may_have_gone_on, [3, math.inf, 3, math.inf, 6, 3, 3, 6, 6])
        for rule in (removals_return.no_force_before_a_pause, removals_return.no_force_beside_a_later_genesis)
    ),
    Row(removals_pause.sides_that_paused_together, tables_pause.sides_that_come_back_from_a_pause, [[5], [5], [7]]),
    Row(removals_pause.side_that_a_genesis_passed_over, tables_pause.side_that_comes_back_after_all, [[8], [8]]),
    Row(removals_pause.stage_that_is_fetched, tables_pause.stages_that_are_fetched, [[True], [False]]),
    Row(removals_pause.record_of_a_snapshot, tables_pause.records_of_what_lies_on_a_disk, [49, 49]),
    Row(removals_pause.part_of_what_was_paused, tables_pause.parts_of_what_was_paused, [[60], [50]]),
    Row(removals_pause.set_from_before_the_last_order, tables_pause.sets_from_before_an_order, [True, False, True]),
    Row(removals_pause.forced_side_that_comes_first, tables_pause.sides_that_come_one_after_the_other, [50]),
    Row(
        removals_pause.side_that_is_a_stranger,
        tables_pause.sides_that_meet_while_strangers_call,
        ["FORMER", "FORMER", "NONE"],
    ),
    Row(removals_pause.pause_that_is_held_up, tables_pause.state_after_a_pause, [True, False, True]),
    Row(removals_pause.pause_without_a_majority, tables_pause.pause_beside_who_is_silent, [False, True]),
    Row(
        removals_return.proof_beside_who_cannot_be_asked,
        tables_return.proof_beside_one_that_cannot_be_asked,
        [True, False, False, True, True],
    ),
    *(
        Row(rule, tables_return.candidate_that_has_promised_another, [0.6, 1.3, 1.9, 0.6, 2.1])
        for rule in (removals_lead.claim_beside_a_promise, removals_lead.promise_that_is_asked_for_again)
    ),
    *(
        Row(rule, tables_return.candidate_that_is_refused_in_earnest, [3, 3, 3, 1])
        for rule in (removals_return.force_by_the_answers_to_a_claim, removals_return.force_beside_a_majority)
    ),
    *(
        Row(rule, tables_return.candidate_beside_one_that_has_lost_its_place, ["by majority", "forced", "waits"])
        for rule in (removals_return.voters_that_are_announced_now, removals_return.voters_that_nobody_shows)
    ),
    *(
        Row(rule, tables_return.candidate_whose_lineage_counts_more, [(-1, True), (3, True)] + [(-1, True)] * 5)
        for rule in (
            removals_return.claim_over_who_gives_way,
            removals_return.coordinator_that_gives_way,
            removals_return.word_of_long_ago,
            removals_return.word_of_an_earlier_term,
        )
    ),
    *(
        Row(rule, tables_return.hope_of_a_candidate, [[True, False, False], [True, True, False]])
        for rule in (removals_return.hope_of_who_is_stopped, removals_return.hope_of_who_is_stopped_for_ever)
    ),
    Row(removals_return.refusal_of_who_gives_way, tables_return.word_of_who_gives_way, ([TERM], [])),
    Row(removals_return.asking_before_claiming, tables_return.candidate_without_majority, (False, False)),
    Row(removals_member.end_of_a_campaign, tables_return.candidate_that_is_called_elsewhere, 1),
    Row(removals_return.number_above_the_highest, tables_return.number_that_others_have_promised, [2, 10]),
    Row(removals_return.order_of_candidates, tables_return.place_in_the_order, False),
    Row(removals_return.catching_up_before_leading, tables_return.record_that_was_missed, (False, False)),
    Row(removals_return.plan_of_the_latest_iteration, tables_return.plan_of_a_term_that_began_further_back, True),
    Row(removals_return.later_life, tables_return.life_that_was_heard_of_late, True),
    Row(removals_return.state_over_rebuild, tables_return.back_after_a_rebuild, (True, 0)),
    Row(removals_return.no_way_back_from_a_seal, tables_return.back_after_a_seal, (False, 1)),
    Row(removals_return.dispute_is_over, tables_return.back_after_a_dispute, (False, 1)),
    Row(removals_return.lineage_at_readmission, tables_return.back_with_another_lineage, (False, 0)),
    Row(removals_return.bar_at_readmission, tables_return.back_while_barred, (False, 0)),
    Row(
        removals_return.record_for_who_is_back,
        tables_return.back_one_record_behind,
        [(["Commit"], True), (["Commit", "Commit"], True), (["Commit", "Build"], False)],
    ),
    Row(removals_return.state_of_a_standby, tables_return.standby_that_holds_a_lost_stage, ("b", "Stay")),
    Row(removals_return.state_of_a_standby, tables_return.standby_with_a_state, ["b"]),
    Row(removals_return.second_word_of_a_barred_one, tables_return.barred_that_says_hello_once_more, ["b"]),
    Row(removals_return.state_of_a_joiner, tables_return.joiner_that_holds_a_lost_stage, ["joiner"]),
    Row(removals_member.founder_of_a_first_record, tables_member.first_record_after_a_later_plan, ["gone", "gone"]),
    Row(
        removals_member.side_without_its_founder,
        tables_member.first_record_after_a_forced_side,
        ["gone", "gone", *["unproven"] * 3],
    ),
    Row(
        removals_member.plan_of_another_coordinator, tables_member.first_record_beside_another_plan, ["gone", "gone", "unproven"]
    ),
    *(
        Row(removal, tables_member.first_record_of_two_sides, ["gone", *["unproven"] * 4])
        for removal in (removals_member.record_that_is_stored, removals_member.stored_record_of_a_stranger)
    ),
    Row(
        removals_member.plan_of_a_founder_passed_over,
        tables_member.first_record_of_a_later_founder,
        ["gone", "gone", "unproven", "unproven"],
    ),
    Row(
        removals_member.vote_under_a_founder_passed_over,
        tables_member.first_record_of_a_later_founder,
        ["gone", "gone", "unproven", "unproven"],
    ),
    Row(removals_return.base_of_who_was_told_to_rejoin, tables_member.base_after_a_lineage, ["", "b0"]),
    Row(removals_return.base_of_a_newcomer, tables_return.newcomer_away_at_a_commit, [5, -1]),
    Row(removals_return.word_of_a_standby, tables_return.standby_that_has_just_said_hello, ["b"]),
    Row(removals_return.place_of_a_feeder, tables_return.feeder_that_serves_alone, [(2, 2), (2, 0)]),
    Row(removals_return.word_of_a_feeder, tables_return.feeder_that_serves_alone, [(2, 2), (2, 0)]),
    Row(removals_return.standby_for_a_feeder, tables_return.feeder_that_coordinates, [(1, 1), (1, 0)]),
    Row(removals_return.place_of_a_coordinator, tables_return.feeder_that_coordinates, [(1, 1), (1, 0)]),
    Row(removals_return.lineage_of_a_shadow, tables_return.shadow_of_another_lineage, 0),
    Row(removals_return.rate_after_a_merge, tables_return.rate_of_a_merged_stage, (True, 0)),
    Row(removals_return.steps_of_a_merge, tables_return.rate_of_a_merged_stage, (True, 0)),
    Row(removals_return.back_during_a_build, tables_return.build_beside_one_that_came_back, 0),
    Row(removals_return.voucher_of_an_inherited_one, tables_return.newcomer_that_is_known_by_a_claim, ("Stay", 5)),
    Row(removals_return.hello_once_more, tables_return.state_that_is_vouched_for_later, [-1, 1]),
    Row(removals_return.founding_once, tables_return.founder_that_was_started_again, [True, False, False]),
    Row(removals_begin.plan_of_an_earlier_founder, situations_begin.member_with_an_old_plan, [True, False]),
    Row(removals_begin.feeders_where_they_are_needed, situations_begin.feeder_with_first_weights, [0, 1]),
    Row(removals_begin.standbys_of_a_beginning, tables_return.standby_before_the_first_open, [1, -1]),
    Row(removals_begin.way_for_a_later_founder, situations_begin.coordinator_that_reads_of_a_founder, [False, True]),
    Row(removals_return.copies_of_older_states, tables_return.copy_from_who_stays, (1, [False, True])),
    Row(removals_return.copies_from_a_builder, tables_return.copy_from_who_builds, (1, [False, True])),
    Row(removals_return.time_for_a_keeper, tables_return.keeper_that_is_missed, [False, True, True]),
    Row(removals_return.copies_for_a_late_builder, tables_return.feeder_that_comes_while_members_step, ["CopyKept"]),
    Row(removals_return.copies_begun_again, tables_return.copy_once_more, (2, True)),
    Row(removals_lead.followers_while_building, tables_lead.majority_of_followers, (True, False)),
    Row(removals_return.own_state_before_a_merge, tables_return.own_older_state, "Stay"),
    Row(
        removals_return.holders_that_can_stay,
        tables_return.holder_that_cannot_stay,
        [("c", "Stay"), ("c", "Stay"), ("b", "Stay")],
    ),
    Row(removals_return.word_of_a_copy, tables_return.copy_whose_answer_is_lost, [5, -1, 5, -1, -1, 5]),
    Row(removals_return.rebuild_put_off_but_for_a_while, tables_return.rivals_one_after_the_other, [True, True, False, True]),
    Row(removals_return.second_look_after_all_waits, tables_return.second_look_that_is_due, [True, False]),
    Row(removals_return.patience_for_what_is_held, tables_return.patience_with_an_old_state, ([0.0, 3.0], True)),
    Row(removals_return.copies_of_who_is_silent, tables_return.copies_that_come_to_nothing, [True, *[False] * 3, True, True]),
    Row(removals_return.builder_that_may_hold_its_stage, tables_return.builder_that_is_silent, [True, True]),
    Row(removals_return.state_before_a_copy, tables_return.copy_whose_answer_is_lost, [5, -1, 5, -1, -1, 5]),
    Row(removals_return.build_that_was_overtaken, tables_return.builder_that_does_not_answer, [False, True]),
    Row(removals_return.own_state_before_a_copy, tables_return.older_state_beside_one_that_is_called_for, [0, 1]),
    Row(removals_return.wait_at_the_end, tables_return.patience_at_the_end, True),
    Row(removals_return.least_wait, tables_return.least_patience, True),
    Row(removals_return.whole_logs, tables_return.log_with_a_gap, "Restore"),
    Row(removals_return.same_depth, tables_return.depth_of_a_donor, [0, 0, 1, 1]),
    Row(removals_return.plan_of_those_who_promise, tables_return.plan_that_a_candidate_missed, [False, True]),
    Row(removals_return.word_of_who_is_led, tables_return.hello_of_a_refused_candidate, "c"),
    Row(removals_return.coordinator_of_others, tables_return.coordinator_that_others_hear, False),
    Row(removals_return.promise_of_the_coordinator, tables_return.coordinator_that_follows_another, True),
    *(
        Row(
            rule,
            tables_return.lineage_that_nobody_leads,
            [*[[(), (), (-1,)]] * 3, [(), (), (), (), (-1,)], [(), (), (-1,), (-1,)]],
        )
        for rule in (
            removals_return.hope_for_a_coordinator,
            removals_return.hope_without_a_plan,
            removals_return.hope_after_a_place,
        )
    ),
    Row(removals_return.candidate_without_a_stage, tables_return.candidate_that_holds_nothing, [False, True, True]),
    *(
        Row(
            rule,
            tables_return.candidate_that_was_told_to_rejoin,
            [
                [None, (8, 4, True)],
                [None, None, (1, 4, False)],
                [None, None, (1, 4, True)],
                [None, None, None],
                [None, None, (8, 4, True)],
                [None, None, (8, 4, True)],
                [None, None, None],
                [None, (8, 4, True)],
                [None, (8, 4, True)],
            ],
        )
        for rule in (
            removals_return.plan_that_was_left,
            removals_return.wait_for_the_successor,
            removals_return.term_that_was_renounced,
            removals_return.term_of_the_one_to_join,
            removals_return.plan_of_another_state,
            removals_return.patience_of_who_gave_up,
            removals_return.places_that_were_left,
            removals_return.plan_learned_since,
            removals_return.told_to_rejoin_as_well,
        )
    ),
    Row(removals_return.places_that_were_left, tables_lead.places_by_three_pasts, [(1, 4), (2, 1), (1, 4)]),
    Row(removals_return.known_as_it_left, tables_return.place_from_one_that_was_left, [True, False, True]),
    Row(removals_member.successor_of_the_one_that_leads, tables_member.goodbyes_that_name_a_successor, [False, True, False]),
    Row(removals_member.state_read_once, tables_copies.state_asked_for_while_a_peer_stood_still, [3, 4]),
    *(
        Row(removal, tables_copies.copy_of_nobody, [*[("failed", 1, 0)] * 2, ("failed", -1, 0), ("failed", 1, 0)])
        for removal in (removals_return.first_part_of_a_copy, removals_return.older_state_of_a_copier)
    ),
    Row(removals_return.lineage_of_whoever_rebuilt, tables_return.state_that_is_not_vouched_for, REBUILT),
    Row(removals_return.voucher_of_a_state, tables_return.state_that_is_not_vouched_for, REBUILT),
    Row(removals_return.word_of_the_coordinator, tables_return.coordinator_that_fenced_a_candidate, (True,) * 3),
    Row(removals_return.word_that_was_lost, tables_return.coordinator_that_was_out_of_reach, (2, True)),
    Row(removals_return.majority_after_catching_up, tables_return.electorate_of_a_missed_record, False),
    # building, replaying, copying
    Row(removals_return.decided_without_the_coordinator, tables_copies.build_of_what_is_decided, ["past", "Built", "past"]),
    Row(
        removals_return.decided_without_the_coordinator,
        tables_copies.heartbeat_of_one_left_behind,
        [
            ("past", "a"),
            ("HeartbeatAnswer", "d"),
            ("past", "a"),
            ("HeartbeatAnswer", "d"),
            ("HeartbeatAnswer", "d"),
            ("HeartbeatAnswer", "a"),
            ("past", ""),
        ],
    ),
    Row(
        removals_return.lineage_before_the_term,
        tables_copies.earlier_term_of_one_left_behind,
        [("past", "past"), ("behind", "behind"), ("past", "past"), *[("behind", "behind")] * 3],
    ),
    Row(removals_return.hope_that_was_given_up, tables_copies.build_of_another_lineage, ["past", "Built"]),
    Row(removals_return.state_of_a_leaver, tables_return.leaver_that_cannot_step, ("c", "Stay")),
    Row(
        removals_return.left_out_for_ever,
        tables_return.candidate_that_was_left_out,
        [False, True, False, False, False, True, True],
    ),
    Row(
        removals_return.left_out_beside_another,
        tables_return.candidate_that_was_left_out,
        [False, True, False, False, False, True, True],
    ),
    Row(
        removals_return.plan_of_one_that_may_not_claim,
        tables_return.plan_told_where_nobody_leads,
        [True, False, True, True, True, False],
    ),
    Row(
        removals_return.named_with_something_else,
        tables_return.named_while_it_holds_something_else,
        [True, *[False] * 6],
    ),
    Row(removals_return.named_before_its_place, tables_return.named_while_it_holds_something_else, [True, *[False] * 6]),
    Row(removals_return.claim_by_a_left_plan, tables_return.named_while_it_holds_something_else, [True, *[False] * 6]),
    Row(removals_return.vote_since_the_genesis, tables_return.holder_of_what_was_named, [True, False]),
    Row(removals_return.copy_of_what_was_made, tables_return.copier_of_what_was_made, [True, *[False] * 5]),
    Row(removals_return.donor_vouches_for_anything, tables_return.donor_that_vouches, [True, False, False]),
    Row(
        removals_return.lineage_of_a_voter,
        tables_return.hello_of_a_voter_without_a_stage,
        [(-1, 5, "1"), (-1, 0, ""), (-1, 0, "")],
    ),
    Row(removals_return.later_snapshot_of_the_same_past, tables_return.snapshot_beside_a_later_one, [[10, 9], [9]]),
    Row(removals_return.state_of_one_that_is_past, tables_return.joiner_that_is_past, "Stay"),
    Row(
        removals_return.donor_on_its_own_side,
        tables_return.donor_that_leads_others,
        [(1, ["Copy"]), (1, ["Copy"]), (1, ["Copy"]), (0, ["Copy", "CopyNeighbour"])],
    ),
    Row(
        removals_return.state_that_was_built_unheard,
        tables_return.builder_that_is_called_for,
        [(False, 5), (False, -1), (True, 5)],
    ),
    Row(removals_return.state_of_who_was_told_nothing, tables_return.newcomer_that_was_told_nothing, [3, -1, -1]),
    *(
        Row(
            removed,
            tables_return.called_for_that_holds_something_else,
            [*[(False, -1, 2, True)] * 3, *[(True, 5, 1, False)] * 5, (False, -1, 2, True), *[(True, 5, 1, False)] * 2],
        )
        for removed in (removals_return.word_of_who_is_called_for, removals_return.word_after_a_heartbeat)
    ),
    Row(
        removals_return.build_of_another_place,
        tables_return.builder_that_has_another_place,
        [([1], True), ([1, 2], True), ([1], False)],
    ),
    *(
        Row(
            rule,
            tables_return.stepping_of_who_is_called_for,
            [(False, False, 5), (True, True, 5), (False, False, 5), (True, True, 5), (True, True, 5), (True, True, 4)]
            + [(False, False, 5)] * 3,
        )
        for rule in (removals_return.step_after_a_promise, removals_return.step_after_its_word)
    ),
    Row(
        removals_return.plan_that_gives_way_to_a_disk,
        tables_return.plan_opened_before_a_snapshot,
        [(1, True, False), (1, False, True), (1, False, True)],
    ),
    Row(removals_return.open_without_a_heartbeat, tables_return.open_that_is_heard, [True, False]),
    Row(removals_return.step_before_its_answer, tables_return.step_whose_answer_is_lost, [6, 8]),
    Row(
        removals_return.step_before_its_answer,
        tables_return.step_that_is_told_before_its_answer,
        [False, True, False, True, False],
    ),
    *(
        Row(
            rule,
            tables_return.newcomer_whose_donors_are_fenced,
            [(told, True) for told in ({"c": 0}, {"c": 0, "b": 4}, {"cb": 0}, {"c": 0}, {"c": 0, "cb": 4}, {"c": 0})],
        )
        for rule in (
            removals_return.donors_that_are_fenced,
            removals_return.copy_that_gets_on,
            removals_return.copy_that_nobody_else_gives,
            removals_return.join_that_counts_no_more,
        )
    ),
    Row(removals_return.doubt_that_lasts, tables_return.builder_that_is_called_for_again, [(0, False), (1, True)]),
    Row(removals_return.copy_of_what_may_be_built, tables_return.builder_that_is_called_for_again, [(0, False), (1, True)]),
    Row(removals_return.last_holder_on_its_own_side, tables_return.last_holder_of_a_lost_stage, (True, False)),
    Row(removals_return.joiner_that_nobody_waits_for, tables_return.copy_after_one_that_was_out_of_reach, [True, True]),
    Row(removals_return.neighbour_that_was_fenced, tables_return.neighbour_that_hangs, [True, False, False]),
    Row(removals_return.deposed_while_it_builds, tables_return.build_of_who_leads_no_longer, [True, False]),
    Row(removals_return.deposed_before_it_builds, tables_return.deposed_as_others_step, [False, True]),
    Row(removals_return.holder_that_is_waited_for_again, tables_return.holder_that_says_nothing, right=True),
    Row(
        removals_return.holder_that_gave_its_state,
        tables_return.copier_that_dies,
        [["c", "nobody"], ["nobody", "nobody"], ["b", "c"], ["c", "nobody"], ["nobody", "nobody"]],
    ),
    Row(
        removals_return.holder_that_gave_its_state,
        tables_return.copier_that_dies_as_it_copies,
        [["Copy", "Copy"], ["Copy", "Copy"], ["Copy", "Copy"], ["Copy", "CopyNeighbour"], 10],
    ),
    Row(removals_lead.state_of_a_silent_standby, tables_roster.standby_that_fell_silent, [True, False]),
    Row(removals_lead.office_after_a_past, tables_roster.member_that_is_past, ["deposed", "heard", "deposed"]),
    Row(removals_lead.plan_that_did_not_come, tables_roster.admitted_beside_a_plan, ["xs1", "dxbcs4", "dxs2"]),
    Row(
        removals_lead.builders_among_those_that_stand_by,
        tables_roster.admitted_beside_a_plan,
        ["xs1", "dxbcs4", "dxs2"],
    ),
    Row(removals_lead.plan_before_a_build, tables_roster.plan_that_a_build_overtakes, [True, False]),
    Row(removals_lead.record_before_it_is_known, tables_roster.record_that_one_cannot_take_who_is_unknown, [True, False]),
    Row(removals_lead.record_before_a_build, tables_roster.record_that_a_build_overtakes, [True, False]),
    Row(removals_lead.stranger_on_the_roster, tables_roster.rival_behind_one_that_forbids, (True, 1)),
    Row(removals_lead.forbidden_while_it_looks, tables_roster.rival_heard_of_while_it_looks, True),
    Row(removals_lead.stranger_that_does_not_rejoin, tables_roster.rival_behind_one_that_does_not_rejoin, (True, True)),
    Row(removals_lead.look_at_once, tables_roster.rival_behind_one_that_forbids, (True, 1)),
    Row(removals_lead.record_that_is_ahead, tables_roster.member_that_is_past, ["deposed", "heard", "deposed"]),
    Row(removals_return.past_with_a_build, tables_return.past_of_a_builder, [0, 3, 4, 5]),
    Row(removals_return.most_of_a_build, tables_return.builder_that_never_ends, True),
    Row(removals_return.frames_as_they_come, tables_return.frames_of_a_long_answer, 1),
    Row(removals_return.state_that_stays, tables_copies.older_state_than_asked, ("failed", 1, 0)),
    Row(removals_return.newer_state_that_stays, tables_copies.newer_state_than_asked, [("Built", 6), ("failed", 6)]),
    Row(removals_return.state_of_any_lineage, tables_copies.state_of_another_lineage, ["Built", "past", "gone"]),
    Row(
        removals_return.lineage_of_a_part,
        tables_copies.shadow_with_a_part_of_another_lineage,
        [("Built", 1, 1), ("disputed", -1, 0), ("disputed", -1, 0)],
    ),
    Row(
        removals_return.voucher_of_a_kept_state,
        tables_copies.state_that_is_kept,
        [("Built", True), ("Built", False), ("Built", False)],
    ),
    Row(removals_return.places_of_holders, tables_return.standbys_that_hold_a_lost_stage, [["second"], ["newcomer", "second"]]),
    Row(removals_return.rebuilt_state_of_who_leaves, tables_return.back_after_a_rebuild_by_one_that_leaves, False),
    Row(removals_return.rebuilt_state_for_a_word, tables_return.stranger_after_a_rebuild, [True, False]),
    Row(removals_return.place_of_who_holds, tables_return.stranger_that_says_it_holds, [True, True, False, True]),
    Row(removals_return.state_as_it_was, tables_copies.state_kept_for_nothing, [(5, True), (6, False), (6, False)]),
    Row(removals_return.state_as_it_was, tables_copies.state_kept_for_nothing_at_a_claim, [(6, False), (5, True)]),
    *(
        Row(removed, tables_copies.state_kept_for_nothing_at_a_hello, [(-1, 0), (1, 5), (1, 5)])
        for removed in (removals_return.state_told_to_another, removals_return.state_of_who_was_told_to_rejoin)
    ),
    Row(
        removals_return.asked_while_kept,
        tables_copies.state_kept_for_who_is_heard,
        [(["a"], 6), (["d", "a"], 5), (["d", "a"], 5)],
    ),
    Row(
        removals_return.claimed_again_at_once,
        tables_copies.lead_that_no_majority_answers,
        ["asks", "claims", "leads", "asks", "claims"],
    ),
    Row(
        removals_return.founder_claimed_again_at_once,
        tables_return.founder_that_no_majority_answers,
        ["leads", "asks a", "claims"],
    ),
    Row(removals_return.kept_before_the_step, tables_copies.state_kept_as_it_steps, right=True),
    Row(
        removals_return.copy_by_a_holder,
        tables_return.copy_that_costs_a_state,
        [(True, "Stay"), (True, "Stay"), (False, "Copy"), (True, "Copy"), (False, "Copy")],
    ),
    Row(removals_return.state_as_it_was, tables_return.candidate_with_a_kept_state, (6, 5, True)),
    Row(removals_return.snapshot_from_after_a_lead, tables_return.place_of_one_that_is_behind, [*[False] * 3, *[True] * 6]),
    Row(removals_return.word_of_who_slept, tables_return.word_of_one_that_passes_over, ["", "", "A", "", "A", ""]),
    Row(removals_return.records_of_who_waits, tables_return.place_of_one_that_waits, [True, False, False]),
    Row(removals_return.lead_of_who_slept, tables_return.founder_beside_one_that_leads, [False, True, True, True]),
    Row(removals_return.patience_of_a_snapshot, tables_return.place_of_one_that_stays_behind, [False, False, True]),
    Row(removals_return.term_of_a_snapshot, tables_return.place_of_one_that_is_behind, [*[False] * 3, *[True] * 6]),
    Row(removals_return.answer_of_a_build, tables_copies.build_asked_for_again, ("Built", 1)),
    Row(removals_return.nothing_held_while_building, tables_copies.build_that_fails, ("failed", -1, 0)),
    Row(removals_return.states_in_a_replay, tables_copies.replay_from_another_state, "Refused"),
    Row(removals_return.rebuilds_in_a_near_replay, tables_copies.replay_past_a_rebuild, ["Refused", "replayed"]),
    Row(removals_return.sums_in_a_replay, tables_copies.replay_with_another_sum, [False, "disputed"]),
    Row(removals_return.norms_in_a_replay, tables_copies.replay_with_another_sum, [False, "disputed"]),
    Row(removals_return.record_that_fits, tables_copies.record_of_another_run, True),
    # whom a copy asks for what
    *(
        Row(rule, tables_donors.donor_that_hangs, [(True, 6, 2), (True, 4, 3), (True, 18, 3)])
        for rule in (
            removals_donors.donor_that_is_waited_for,
            removals_donors.donor_that_gave_nothing,
            removals_donors.donor_on_a_slow_link,
            removals_donors.donor_late_with_one_thing,
        )
    ),
    Row(removals_donors.donor_that_is_silent, tables_donors.donor_that_is_gone, [(True, 2, 6)]),
    Row(removals_donors.moment_of_who_was_late, tables_donors.donor_that_is_gone, [(True, 2, 6)]),
    Row(removals_donors.donor_late_with_parts, tables_donors.average_that_is_missed, [(True, 4, 2), (True, 3, 8)]),
    Row(removals_donors.average_of_who_was_silent, tables_donors.donor_that_keeps_no_average, (True, True)),
    *(
        Row(rule, tables_donors.donor_that_is_behind, [True, True])
        for rule in (removals_donors.record_of_who_was_silent, removals_donors.record_on_a_slow_link)
    ),
    Row(
        removals_donors.donor_that_gives_again,
        tables_donors.donor_that_is_back,
        [(True, 32, 1), (True, 32, 3), (True, 32, 2)],
    ),
    Row(removals_donors.donor_that_is_asked_again, tables_donors.donor_out_of_reach_for_long, ([("second", 30.3)], 42)),
    Row(
        removals_donors.usual_time_of_donors,
        tables_donors.donors_that_are_all_slow,
        ([("first", 0.5), ("first", 0.5), ("first", 0.5)], 4),
    ),
    Row(removals_donors.calls_that_are_not_needed, tables_donors.donor_that_hangs_beside_another, ([("second", 0.3)], 2)),
    Row(
        removals_donors.donor_that_gives_late,
        tables_donors.donor_that_is_slow_beside_another,
        ([("second", 0.3), ("first", 0.6), ("second", 0.1)], 7),
    ),
    *(
        Row(rule, tables_donors.donors_without_it, ([("nobody", 4.0), ("nobody", 0.2)], 4))
        for rule in (removals_donors.average_of_who_hangs, removals_donors.average_from_who_is_silent)
    ),
    Row(removals_donors.average_that_all_give_slowly, tables_donors.average_that_takes_long, ([("first", 5.0)], 2)),
    Row(
        removals_donors.moment_by_what_it_took,
        tables_donors.donor_that_was_silent_on_a_slow_link,
        ([("first", 0.3), ("nobody", 2.0), ("first", 0.3)], 6),
    ),
    Row(removals_donors.donor_that_was_not_asked_yet, tables_donors.donors_that_refuse_after_a_while, ([("second", 3.1)], 3)),
    Row(removals_donors.donor_that_is_named_no_more, tables_donors.donor_that_is_named_no_more, ([("second", 11.2)], 2)),
    Row(removals_donors.call_that_is_under_way, tables_donors.donor_that_gives_at_last, ([("first", 14.3)], 24)),
    Row(removals_donors.time_of_a_second_download, tables_donors.averages_on_a_slow_link, (True, 3)),
    Row(removals_donors.donor_named_meanwhile, tables_donors.donors_of_the_next_plan, ([("second", 1.3)], 2)),
    Row(removals_return.build_that_gave_way, tables_return.copy_that_gives_way, [0, 1]),
    Row(removals_return.part_again, tables_copies.part_that_fell_behind, True),
    *(
        Row(removal, tables_copies.copy_that_is_asked_for_again, [("Built", False), *[("superseded", True)] * 4])
        for removal in (
            removals_return.copy_that_goes_on,
            removals_return.copy_on_the_same_lineage,
            removals_return.copy_from_the_same_donors,
            removals_return.copy_on_a_lineage_that_is_unknown,
            removals_return.donors_that_are_named_later,
            removals_return.copy_of_the_same_stage,
        )
    ),
    Row(removals_return.digest_of_a_copy, tables_copies.copy_with_wrong_bytes, -1),
    Row(removals_return.spares_of_a_beginning, tables_return.spare_before_the_first_plan, [2, 1]),
    Row(removals_return.replicas_of_a_beginning, tables_return.spare_before_the_first_plan, [2, 1]),
    Row(removals_return.old_copy_until_a_new_one, tables_copies.copy_that_is_behind, 1),
    Row(removals_return.lineage_of_a_copy, tables_copies.copy_of_another_lineage, "gone"),
    Row(
        removals_move.those_who_stay,
        tables_move.those_it_leaves_and_joins,
        [True, False, False, False, False, True, True, False, False, False, False, False],
    ),
    *(
        Row(
            removal,
            tables_move.those_who_leave_for_their_links,
            ["ab", "ab", "d", "", "", "", "", "b", "", "ab", "a", "", "", ""],
        )
        for removal in (removals_move.those_who_leave, removals_move.majority_without_them)
    ),
    *(
        Row(removal, tables_return.standby_for_its_link, ((ABSENT, ABSENT, ABSENT, 1, False), (1, False), (1, False)))
        for removal in (removals_move.rest_of_a_slow_link, removals_move.rest_of_who_was_away)
    ),
    Row(removals_move.links_with_one_alone, tables_move.links_of_two, [math.inf, math.inf, 2.0, 2.0, 1.0]),
    Row(
        removals_move.keepers_that_are_slow,
        tables_move.keepers_beside_slow_replicas,
        ["acbde", "adbce", "adbec", "acbde", "acbde"],
    ),
    # the end
    Row(removals_end.time_for_who_is_cut_off, tables_end.lost_stage_without_a_majority, ({2}, True)),
    Row(removals_end.others_that_gather, tables_end.stage_that_is_given_up, [1, 2, 1, 2]),
    Row(removals_end.strangers_that_gather, tables_end.stage_that_is_given_up, [1, 2, 1, 2]),
    Row(removals_end.who_comes_as_others_write, tables_end.stage_that_is_given_up, [1, 2, 1, 2]),
    Row(removals_end.everybody_knows_that_all_is_written, tables_end.who_knows_that_all_is_written, ["a", "b", "c", "d"]),
    Row(removals_end.last_record_again, tables_end.holder_of_an_older_state, [([], set()), ([2], {2})]),
    # evidence
    Row(removals_evidence.votes_of_a_record, tables_evidence.commits_of_a_member, ["unproven", "unproven", "Committed"]),
    Row(
        removals_evidence.commit_before_a_heartbeat,
        tables_evidence.commits_that_come_before_a_heartbeat,
        [("Committed", 1, 0.5), ("unproven", 0, 1.5)],
    ),
    Row(removals_evidence.votes_of_few, tables_evidence.commits_of_a_member, ["unproven", "unproven", "Committed"]),
    Row(removals_evidence.own_vote_is_known, tables_evidence.commits_of_few, ["unproven", "Committed", "Committed"]),
    Row(removals_evidence.signed_by_who_is_known, tables_evidence.commits_that_were_forced, ["Committed", "unproven"]),
    Row(removals_evidence.term_of_a_vote, tables_evidence.votes_of_two_terms, "unproven"),
    Row(removals_evidence.votes_of_a_record, tables_evidence.record_of_a_plan, ["Promise", "unproven"]),
    Row(removals_evidence.signature_of_a_vote, tables_evidence.votes_that_are_signed, (["b", "d"], ["b", "d"])),
    Row(removals_evidence.promise_of_a_liar, tables_evidence.promise_of_one_that_invents, (True, ["c"])),
    Row(
        removals_evidence.place_that_is_offered,
        tables_evidence.places_that_are_offered,
        [(False, False), (False, False), (True, True), (False, False), (True, True), (True, True)],
    ),
    Row(removals_evidence.term_of_a_seal, tables_evidence.seals_of_terms, [("not_yet", False)] * 2),
    *(
        Row(
            removal,
            tables_evidence.heartbeats_of_a_higher_term,
            [
                ("fresh", "a"),
                ("not_yet", "a"),
                ("HeartbeatAnswer", "d"),
                *[("not_yet", "a")] * 3,
                ("HeartbeatAnswer", "d"),
                ("HeartbeatAnswer", "d"),
            ],
        )
        for removal in (
            removals_evidence.heartbeat_of_a_higher_term,
            removals_evidence.promises_of_a_majority,
            removals_evidence.term_of_a_promise,
        )
    ),
    *(
        Row(removal, tables_evidence.heartbeats_before_the_first_record, ["not_yet", "HeartbeatAnswer", "HeartbeatAnswer"])
        for removal in (removals_evidence.founder_elects, removals_evidence.promised_already)
    ),
    Row(removals_evidence.promise_to_a_question, tables_evidence.answers_to_claims, [False, True]),
    Row(removals_evidence.signature_of_a_promise, tables_evidence.promises_that_are_signed, (["a"], ["a"])),
    *(
        Row(removal, tables_evidence.heartbeats_with_promises, [(0, 0), (2, 0), (0, 0)])
        for removal in (removals_evidence.promises_in_a_heartbeat, removals_evidence.promises_for_a_newcomer)
    ),
    Row(
        removals_evidence.promises_that_were_taken_back,
        tables_member.promises_of_a_beaten_lineage,
        ["fresh", "behind", "HeartbeatAnswer"],
    ),
    Row(removals_evidence.not_yet_is_silence, tables_roster.not_yet_of_the_last, [True, False]),
    Row(removals_evidence.fresh_to_one_elected, tables_roster.fresh_of_the_last, [(True, True), (False, True), (False, True)]),
    Row(
        removals_evidence.votes_of_those_that_answer,
        tables_evidence.votes_of_those_that_are_called_for,
        [["a", "b", "d"], ["a", "b", "c", "d"]],
    ),
    *(
        Row(removal, tables_evidence.whom_it_has_asked_before, [[], ["x"]])
        for removal in (removals_evidence.asked_until_led, removals_evidence.asked_right_now)
    ),
    Row(removals_evidence.own_forced_record, tables_evidence.forced_record_that_comes_back, ["Committed", "unproven"]),
    Row(removals_evidence.evidence_from_a_disk, tables_evidence.record_from_a_disk, ["d"]),
    Row(removals_lead.lead_of_a_stranger, tables_evidence.rivals_after_a_forced_record, [False, True, False, False]),
    Row(removals_evidence.record_names_its_leader, tables_evidence.rivals_after_a_forced_record, [False, True, False, False]),
    Row(removals_evidence.record_of_the_claim, tables_evidence.rivals_after_a_forced_record, [False, True, False, False]),
    Row(removals_evidence.ticket_of_an_announcement, tables_evidence.announced_with_and_without_a_ticket, [["right"], [], []]),
    Row(
        removals_evidence.announced_with_a_revoked_ticket,
        tables_evidence.announced_with_and_without_a_ticket,
        [["right"], [], []],
    ),
    Row(removals_evidence.turns_between_tickets, tables_evidence.turns_beside_many_tickets, 8),
    Row(removals_directory.ticket_of_a_relay, tables_directory.relays_with_and_without_a_ticket, [tables_directory.PEER]),
    Row(removals_directory.copies_of_who_is_announced, tables_directory.copies_of_a_ban_list, [2, 2]),
    Row(removals_directory.run_of_whom_the_invite_names, tables_directory.strangers_run, ["none had it", "another run"]),
    Row(removals_directory.records_that_belong, tables_directory.what_belongs_to_a_run, [tables_directory.PEER]),
    Row(removals_directory.known_owners_first, tables_directory.known_among_many, (9, 1)),
    Row(removals_directory.all_that_is_announced, tables_directory.known_among_many, (9, 1)),
    Row(removals_directory.judged_once, tables_directory.judged_again, 1),
    # a stage that nobody comes for
    Row(removals_adoption.time_for_a_newcomer, tables_adoption.asked_after_a_while, [[], ["d"]]),
    Row(removals_adoption.time_after_a_guest, tables_adoption.asked_after_a_guest, ([[], [], ["d"]], [6])),
    Row(removals_adoption.cost_of_an_earlier_loss, tables_adoption.told_after_a_newcomer, [(0.0, 0.0)]),
    Row(removals_adoption.nothing_beside_a_holder, tables_adoption.asked_beside_a_holder, []),
    Row(removals_adoption.spare_before_a_guest, tables_adoption.asked_beside_a_spare, []),
    Row(removals_adoption.another_host, tables_adoption.asked_next, ["d", "a", "d"]),
    Row(removals_adoption.room_of_a_host, tables_adoption.asked_without_room, []),
    Row(removals_adoption.place_of_a_guest, tables_adoption.second_guest, -1),
    Row(removals_adoption.leavers_beside_a_lost_stage, tables_adoption.newcomer_beside_a_guest, 2),
    Row(removals_adoption.guest_of_an_excluded_host, tables_adoption.hello_of_an_excluded_host_s_guest, ["excluded", "placed"]),
    Row(removals_adoption.guest_that_nobody_replaces, tables_adoption.guest_that_is_let_go, [False, True, False]),
    Row(removals_adoption.guest_that_the_dead_replace, tables_adoption.guest_that_is_let_go, [False, True, False]),
    Row(removals_end.lineage_of_weights, tables_end.weights_of_a_lineage_that_was_left, ([1, 1], [True, False])),
    # a model that is cut anew
    Row(removals_cuts.prepared_before_it_counts, tables_cuts.opened_unprepared, ("gone", 1)),
    Row(removals_cuts.prepared_before_it_counts, tables_cuts.stored_unprepared, ["gone", "Sealed"]),
    Row(removals_cuts.way_back_from_a_cut, tables_cuts.opened_and_taken_back, ["Promise", True, "Promise", True]),
    Row(removals_cuts.way_back_from_two_cuts, tables_cuts.prepared_again_in_a_cut, ["gone", "gone", "Promise", True]),
    Row(removals_cuts.kept_as_recorded, tables_cuts.snapshot_in_a_cut, True),
    Row(removals_cuts.kept_as_recorded, tables_cuts.kept_in_a_cut, "Built"),
    Row(removals_cuts.kept_in_turn, tables_cuts.kept_during_a_step, "at once"),
    Row(removals_cuts.memory_for_a_cut, tables_cuts.prepared_without_memory, ["exhausted", "Prepared"]),
    Row(removals_cuts.contribution_after_its_round, tables_cuts.contribution_that_came_as_a_plan_was_cut, ("stale", 2)),
    Row(removals_cuts.one_preparation_at_a_time, tables_cuts.prepared_at_once, 1),
    Row(removals_cuts.cut_of_a_state, tables_cuts.asked_for_another_cut, ["gone", "State", True]),
    Row(removals_cuts.cut_of_a_plain_shadow, tables_cuts.shadow_of_a_cut_that_no_record_has, ["ShadowPart", "gone"]),
    Row(removals_cuts.cut_of_a_shadow, tables_cuts.shadows_of_older_cuts, [5]),
    Row(removals_cuts.prepared_by_everybody, tables_cuts.prepared_by_some, [(3, 1), (), ()]),
    Row(removals_cuts.stage_that_is_lost_meanwhile, tables_cuts.lost_after_it_was_prepared, ()),
    Row(removals_cuts.joiners_of_a_cut, tables_cuts.joiner_of_a_cut, [True, False]),
    Row(removals_cuts.cut_of_a_successor, tables_cuts.successor_of_a_cut, [(), ()]),
    Row(removals_cuts.stage_without_blocks, tables_cuts.lost_without_blocks, [("Restore", 0, 1), ("Merge", 1, 0)]),
    Row(removals_cuts.guests_of_a_cut, tables_cuts.cut_with_a_guest, [(3, 1), ()]),
    Row(removals_cuts.proven_copies, tables_cuts.copied_of_what_was_rebuilt, True),
    Row(removals_cuts.copies_that_nobody_wants, tables_cuts.copies_that_nobody_asks_for, False),
    Row(removals_cuts.copied_before_the_stop, tables_cuts.cut_before_all_is_copied, [(), (3, 1)]),
    Row(removals_cuts.copies_of_another_swarm, tables_cuts.cut_for_whoever_came_meanwhile, ()),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule.__name__)
def test_without_the_rule_the_answer_is_another(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rule the answer is right; without it, it is another one."""
    assert row.table() == row.right
    row.rule(monkeypatch)
    assert row.table() != row.right, "nothing misses this rule"


def test_every_removal_is_missed_somewhere_and_told_of() -> None:
    """No rule can be taken out that no row asks for, and docs/mutants.md names each one."""
    known = {function.__name__ for module in REMOVALS for function in vars(module).values() if _is_removal(function, module)}
    asked = {row.rule.__name__ for row in ROWS} | {mutant.rule.__name__ for mutant in MUTANTS}
    assert known == asked
    told = (Path(__file__).parents[2] / "docs" / "mutants.md").read_text(encoding="utf-8")
    assert not [name for name in sorted(known) if f"`{name}`" not in told]


def _is_removal(found: object, module: ModuleType) -> bool:
    return isinstance(found, FunctionType) and found.__module__ == module.__name__ and not found.__name__.startswith("_")
