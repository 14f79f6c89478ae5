"""Batches, ensembles, limits, caches and sequences."""

from tests.docs.behaviour.modules import (
    ARBITER,
    AT_ONCE,
    BRANCHES,
    CACHED,
    ENSEMBLES,
    EVEN,
    FETCHED,
    FILLED,
    GIVEN_UP,
    HELD,
    IMPLICIT_STATE,
    LIMITED,
    PLAN,
    RETURNING,
    ROW_SPLIT,
    SEQUENCE_LANES,
    SEQUENCE_MODELS,
    SEQUENCES,
    SEVERAL,
    SIZED,
)

TESTS: dict[str, tuple[str, ...]] = {
    # Batching
    "With `dynamic_batching` and no queue policy, delay": (
        RETURNING + "test_halves_become_one",
        RETURNING + "test_nobody_is_awaited_after_a_short_batch_or_that_of_one_client",
        RETURNING + "test_nobody_is_awaited_while_another_instance_runs",
        RETURNING + "test_who_waits_goes_when_the_wait_is_over",
        RETURNING + "test_no_wait_is_longer_than_25_ms",
        RETURNING + "test_no_request_waits_longer_than_that_beside_an_idle_instance",
        "deployments/schedulers/test_dynamic.py::test_plain_models_are_told_from_those_with_policies",
    ),
    "So clients that send one request after the other share one": (RETURNING + "test_halves_become_one",),
    "When fewer than half come back in that time": (
        RETURNING + "test_clients_that_do_not_return_are_awaited_ever_more_seldom",
    ),
    "A batch of an ONNX model with convolutions on a GPU is filled up": (
        FILLED + "test_sizes_are_few_and_those_that_are_preferred",
        SIZED + "test_each_size_has_a_session_and_answers_are_those_of_the_batch_alone",
        SIZED + "test_requests_of_a_batch_that_is_filled_up_get_their_rows",
    ),
    "So it is with `dynamic_batching`, without TensorRT": (
        FILLED + "test_only_batches_of_convolutions_are_filled_up",
        FILLED + "test_sessions_take_so_much_at_most",
        FILLED + "test_there_are_no_more_sizes_than_sessions_whose_weights_fit",
    ),
    "Outputs of the first batch that is filled up must be the same as": (
        SIZED + "test_batches_whose_rows_depend_on_each_other_are_not_filled_up",
        SIZED + "test_a_batch_that_finds_no_memory_beside_other_sessions_runs_without_them",
    ),
    "A batch of an ONNX model on the CPU is divided": (
        ROW_SPLIT + "test_rows_run_in_parts_once_that_is_measured_as_quicker",
        ROW_SPLIT + "test_two_batches_at_a_time_have_a_core_each",
    ),
    "While that is measured, both ways must give the same outputs": (
        ROW_SPLIT + "test_outputs_that_depend_on_other_rows_are_never_divided",
    ),
    "Only models with `dynamic_batching`, whose batches": (
        ROW_SPLIT + "test_quick_batches_and_single_rows_open_no_second_session",
        ROW_SPLIT + "test_the_second_session_goes_when_parts_are_slower",
        ROW_SPLIT + "test_only_some_models_are_measured",
    ),
    "Where `intra_op_thread_count`": (ROW_SPLIT + "test_only_some_models_are_measured",),
    "A queue delay of less than a millisecond": (
        "deployments/core/test_fine_timer.py::test_a_short_delay_is_kept",
        "deployments/core/test_fine_timer.py::test_a_batch_waits_for_less_than_a_millisecond_if_its_model_says_so",
    ),
    "Each replica of a model has a queue of its own": (
        "deployments/lane/test_full_queue.py::test_a_request_that_finds_a_full_queue_goes_to_another_replica",
        "deployments/lane/test_full_queue.py::test_a_request_is_refused_when_every_queue_is_full",
    ),
    "A request that finds one full is sent": (
        "deployments/lane/test_full_queue.py::test_a_request_that_finds_a_full_queue_goes_to_another_replica",
        "deployments/lane/test_full_queue.py::test_a_request_is_refused_when_every_queue_is_full",
        "deployments/lane/test_full_queue.py::test_a_request_is_refused_after_three_replicas",
        "deployments/lane/test_full_queue.py::test_a_request_within_a_sequence_is_refused_by_the_replica_that_holds_it",
    ),
    "An input of a batch on a GPU that has 128 KiB": (
        FETCHED + "test_rows_lie_one_after_the_other_and_the_last_stands_for_those_that_are_missing",
        FETCHED + "test_what_is_joined_sooner_or_cannot_be_fetched_stays_an_array",
        FETCHED + "test_a_model_has_its_large_inputs_fetched",
    ),
    "Shared memory, of a client or between ingress and replica": (
        FETCHED + "test_shared_memory_is_pinned_once_it_was_worth_it_until_it_is_gone",
        FETCHED + "test_nothing_is_pinned_that_shall_not_or_cannot_be",
    ),
    "A client's is not pinned any more": (
        FETCHED + "test_an_object_that_gets_other_memory_is_mapped_anew_and_not_pinned_again",
    ),
    "On a GPU what waits when a batch of a millisecond": (
        AT_ONCE + "test_what_waits_runs_before_the_answers_are_written",
        AT_ONCE + "test_on_a_cpu_and_after_a_short_batch_answers_come_first",
        AT_ONCE + "test_answers_keep_their_order_where_they_must",
        AT_ONCE + "test_what_waits_is_started_and_not_run_on_the_loops_thread_before_the_answers",
    ),
    "Then no batch waits for clients, who come back in two halves": (
        AT_ONCE + "test_a_batch_that_has_started_is_not_held_back_for_clients_that_return",
    ),
    "Where a model has one instance there, and no queue policy": (
        EVEN + "test_groups_of_any_two_sizes_become_equal",
        EVEN + "test_groups_that_are_equal_stay_so_and_all_are_asked_in_turn",
        EVEN + "test_all_go_together_that_no_others_have_just_run_beside",
        EVEN + "test_a_batch_that_would_be_filled_up_to_the_same_size_stays_whole",
        EVEN + "test_only_the_one_instance_of_a_gpu_has_even_batches",
    ),
    "Clients that came as 1 and 15 would stay so otherwise": (
        EVEN + "test_only_the_one_instance_of_a_gpu_has_even_batches",
    ),
    "Ragged inputs share a batch": (
        "deployments/backends/test_onnxruntime.py::test_every_kind_of_batch_input",
        "deployments/backends/test_pytorch.py::test_every_kind_of_batch_input",
    ),
    # Ensembles
    "An ensemble with a decoupled step is decoupled": (
        ENSEMBLES + "test_a_decoupled_step_makes_the_ensemble_decoupled",
        BRANCHES + "test_responses_leave_in_the_order_in_which_the_steps_after_them_end",
    ),
    "A step with `eagleray.when.<step>` runs only when": (
        ENSEMBLES + "test_a_step_whose_condition_does_not_hold_is_not_run",
        BRANCHES + "test_a_condition_is_on_all_rows_of_the_request",
        BRANCHES + "test_what_depends_on_a_skipped_step_is_skipped_and_its_outputs_are_left_out",
    ),
    "[Conditions](ensembles.md)": (
        "docs/test_ensembles_page.py::test_the_example_asks_the_large_model_when_the_small_one_is_not_sure",
    ),
    "`max_inflight_requests` bounds": (BRANCHES + "test_a_step_has_no_more_requests_under_way_than_the_limit_allows",),
    "A step has the inputs and outputs of its model's highest version": (
        "repository_loader/test_ensemble_graph.py::test_a_step_of_any_version_is_asked_as_the_highest_is",
    ),
    "An error of a step names the step": (
        "deployments/core/test_loaded_ensembles.py::test_ensemble_runs_over_models_of_the_same_core",
    ),
    "When a client leaves, the steps of its request": (
        ENSEMBLES + "test_steps_of_clients_that_have_left_do_not_run",
        ENSEMBLES + "test_a_client_that_leaves_the_stream_of_an_ensemble_stops_its_step",
    ),
    "An ensemble serves as it was until those of its steps": (
        "deployments/replica/test_hosted_ensembles.py::"
        "test_an_ensemble_that_is_loaded_anew_with_its_step_asks_what_serves_until_the_step_is_there",
        "e2e/control/test_reloads.py::test_an_ensemble_and_steps_in_other_processes_change_together",
    ),
    "What a step was before its inputs or outputs changed": (
        "deployments/lane/test_interface_targets.py::"
        "test_what_had_another_interface_is_asked_by_that_until_it_is_let_go_of",
        "deployments/replica/test_host_router.py::test_a_step_of_another_interface_is_refused",
        "deployments/replica/test_late_loads.py::test_what_had_another_interface_is_kept_until_nobody_asks_it",
    ),
    "A tensor passes between models of one process": (
        "deployments/core/test_loaded_ensembles.py::test_tensors_between_steps_of_a_core_are_the_same_memory",
        "deployments/core/test_loaded_ensembles.py::test_independent_steps_run_at_the_same_time",
    ),
    # Rate limiter
    "With `--rate-limit execution_count`": (
        "deployments/replica/test_node_rate_limiter.py::test_instances_of_two_processes_run_one_after_the_other",
        LIMITED + "test_a_batch_waits_for_its_instances_turn",
    ),
    "An instance that is loaded later counts": (ARBITER + "test_who_comes_late_takes_turns_with_who_has_had_many",),
    "Of the instances that wait, the one runs next": (
        ARBITER + "test_turns_go_by_priority",
        ARBITER + "test_with_as_many_turns_the_higher_priority_is_first",
        ARBITER + "test_what_needs_much_is_not_starved_and_holds_up_nobody_else",
    ),
    "An instance that has run and goes on at once": (
        "deployments/replica/test_node_rate_limiter.py::test_an_instance_that_goes_on_keeps_its_share_of_the_turns",
    ),
    "What a process holds is free as soon as": (
        "deployments/replica/test_node_rate_limiter.py::test_a_holder_that_is_killed_frees_what_it_held",
        "deployments/replica/test_node_rate_limiter.py::test_what_is_held_stays_held_while_the_arbiter_changes",
        ARBITER + "test_who_is_gone_holds_nothing",
    ),
    "A batch that waits runs on an instance of its model": (
        LIMITED + "test_what_waits_for_a_turn_runs_on_an_instance_that_needs_nothing_and_is_idle_first",
        LIMITED + "test_who_has_waited_longest_runs_first_whichever_instance_has_its_turn",
    ),
    "A batch that waits for resources takes along": (
        LIMITED + "test_a_batch_that_waits_for_its_turn_takes_along_what_comes_and_fits",
        LIMITED + "test_a_batch_that_waits_for_its_turn_grows_to_a_preferred_size_and_by_its_own_shape",
    ),
    "Requests that wait for resources count": (
        LIMITED + "test_what_waits_for_its_instances_turn_is_seen_to_wait",
        SEQUENCE_MODELS + "test_what_waits_for_the_rate_limiter_is_seen_to_wait_and_then_to_run",
    ),
    "A model that needs more than `--rate-limit-resource`": (
        ARBITER + "test_what_can_never_run_is_refused_in_tritons_words",
    ),
    "Nor is one that lists resources of more than": (
        "deployments/replica/test_node_rate_limiter.py::"
        "test_resources_that_take_too_much_are_refused_and_hold_up_nobody",
    ),
    # Response cache
    "With `--cache-config local,size=<bytes>`": (
        CACHED + "test_the_same_request_runs_once",
        CACHED + "test_a_request_that_differs_runs",
        "deployments/core/test_loader.py::test_responses_of_models_and_ensembles_are_kept_where_they_want_that",
        "e2e/shared/test_response_cache.py::test_the_same_request_runs_once_whatever_protocol_brings_it",
    ),
    "It never holds more than that size": (
        CACHED + "test_what_is_kept_is_bounded_and_what_is_in_use_stays",
        "deployments/core/test_response_ring.py::test_the_file_is_never_larger_than_was_asked_for",
    ),
    "None of these processes waits for another": (
        "deployments/core/test_response_ring.py::test_no_death_at_any_moment_makes_an_answer_wrong",
        "deployments/core/test_response_ring.py::test_what_is_written_over_while_it_is_copied_is_no_answer",
        "deployments/core/test_response_ring.py::test_what_is_damaged_is_no_answer",
        "deployments/core/test_response_ring.py::test_a_writer_that_stands_still_holds_up_nobody_and_its_death_frees_its_place",
    ),
    "What an ensemble has kept stays": (
        "deployments/core/test_loader.py::test_responses_of_models_and_ensembles_are_kept_where_they_want_that",
    ),
    "Errors are not kept": (
        CACHED + "test_errors_are_not_kept",
        CACHED + "test_a_request_that_would_take_long_to_compare_runs",
        CACHED + "test_an_answer_that_would_take_long_to_copy_is_not_kept",
        CACHED + "test_a_request_that_differs_runs",
    ),
    "The processes of a node have one cache together": (
        "deployments/core/test_response_ring.py::test_what_one_process_keeps_others_find_also_after_its_death",
        "e2e/test_several_ingresses.py::test_what_one_has_answered_the_other_answers_from_the_cache",
    ),
    "A model that is loaded anew answers anew": (
        "e2e/control/test_model_control.py::test_a_model_that_is_loaded_anew_forgets_what_it_has_answered",
        "deployments/core/test_loader.py::test_a_model_answers_for_another_process_only_where_its_files_are_the_same",
        "deployments/core/test_loader.py::test_a_model_whose_files_change_while_it_loads_answers_for_no_other",
    ),
    "Hits and misses are in the statistics": (
        CACHED + "test_hits_and_misses_are_counted_as_triton_counts_them",
        "e2e/shared/test_response_cache.py::test_the_same_request_runs_once_whatever_protocol_brings_it",
    ),
    "What a client does to its shared memory while it waits": (
        "deployments/schedulers/test_cached.py::test_what_a_client_changes_in_its_shared_memory_is_no_answer_to_others",
    ),
    # Sequences
    "`sequence_batching` works with ONNX": (
        "e2e/shared/test_sequences.py::test_interleaved_sequences_end_with_their_sums",
        "e2e/shared/test_sequences.py::test_a_request_without_a_start_is_refused_with_tritons_text",
        IMPLICIT_STATE + "test_each_sequence_gets_its_own_state_back",
    ),
    "`direct` gives each sequence a row": (
        SEQUENCES + "test_direct_keeps_each_sequence_in_its_row",
        SEQUENCES + "test_oldest_holds_more_sequences_than_a_batch_and_takes_one_request_of_each",
        "deployments/schedulers/test_sequence_properties.py::test_every_request_gets_what_the_rules_say",
    ),
    "A sequence that finds no free slot": (
        SEQUENCES + "test_the_backlog_is_first_come_first_served_and_holds_whole_sequences",
    ),
    "When the first `timeout` of its requests": (
        GIVEN_UP + "test_a_waiting_sequence_expires_as_a_whole_with_its_earliest_timeout",
    ),
    "To cancel a request that waits, be it for the rate limiter": (
        SEQUENCE_MODELS + "test_to_cancel_what_waits_for_the_rate_limiter_ends_its_sequence",
        GIVEN_UP + "test_to_cancel_a_request_that_waits_is_to_end_its_sequence",
        GIVEN_UP + "test_to_cancel_a_request_in_the_backlog_is_to_end_its_sequence",
        GIVEN_UP + "test_a_sequence_of_which_all_is_cancelled_before_any_has_run_leaves_its_slot",
    ),
    "A sequence without requests for": (
        SEQUENCES + "test_an_idle_sequence_loses_its_slot",
        SEQUENCES + "test_of_several_sequences_each_is_idle_by_itself",
    ),
    "After its replica has stood still": (
        SEQUENCES + "test_a_sequence_goes_on_with_what_was_sent_while_the_replica_stood_still",
        SEQUENCES + "test_a_replica_that_stands_still_again_and_again_ends_idle_sequences_all_the_same",
    ),
    "Where just the instances of a model change": (
        "deployments/replica/test_changed_instances.py::test_sequences_go_on_in_the_instances_of_before",
        "deployments/replica/test_changed_instances.py::test_a_host_that_closes_waits_for_no_sequence",
    ),
    "One that starts anew does so in the new instances": (
        "deployments/replica/test_changed_instances.py::test_sequences_go_on_in_the_instances_of_before",
        "deployments/replica/test_changed_instances.py::test_a_sequence_that_starts_anew_follows_what_runs_of_it",
    ),
    "A model that becomes another ends its sequences": (
        "deployments/replica/test_changed_instances.py::test_sequences_end_when_their_model_becomes_another",
    ),
    "Those that wait for a slot then get it": (
        "deployments/schedulers/test_sequence_instances.py::"
        "test_of_a_model_that_is_gone_who_waits_for_a_slot_waits_for_no_client",
    ),
    "A request that fails leaves its sequence": (
        SEQUENCES + "test_a_request_that_fails_does_not_end_its_sequence",
        IMPLICIT_STATE + "test_a_failed_request_leaves_the_state_as_it_was",
    ),
    "Implicit state begins with zeros": (
        IMPLICIT_STATE + "test_a_state_may_begin_with_a_file",
        IMPLICIT_STATE + "test_a_state_may_grow",
        IMPLICIT_STATE + "test_a_state_is_not_sent_unless_it_is_an_output_that_was_asked_for",
    ),
    "A decoupled model may return it": (IMPLICIT_STATE + "test_a_decoupled_model_gets_its_state_back",),
    "With several replicas a sequence stays": (
        SEQUENCE_LANES + "test_interleaved_sequences_through_two_ingresses_and_two_replicas",
        SEVERAL + "test_sequences_stay_with_their_replica_whichever_ingress_they_come_through",
    ),
    "New replicas take new sequences": (
        SEQUENCE_LANES + "test_a_new_replica_takes_new_sequences_only",
        SEQUENCE_LANES + "test_a_client_that_changes_its_ingress_when_replicas_were_added_hears_the_right_sum",
    ),
    "A sequence that starts anew ends what any other replica holds": (
        SEQUENCE_LANES + "test_a_client_that_changes_its_ingress_when_replicas_were_added_hears_the_right_sum",
        GIVEN_UP + "test_a_sequence_that_has_started_elsewhere_ends_here",
    ),
    "When the replica of a sequence dies or leaves": (
        SEQUENCE_LANES + "test_when_the_replica_dies_each_sequence_in_it_gets_one_error_and_may_start_anew",
    ),
    "The sequence may start anew": (
        SEVERAL + "test_sequences_of_a_replica_that_dies_fail_once_and_start_anew",
        SEQUENCE_LANES + "test_when_the_replica_dies_each_sequence_in_it_gets_one_error_and_may_start_anew",
    ),
    "Sequences of other replicas go on": (SEVERAL + "test_sequences_of_a_replica_that_dies_fail_once_and_start_anew",),
    "What starts in a replica that was told to end": (
        SEQUENCE_LANES + "test_what_starts_in_a_replica_that_leaves_starts_in_another_and_what_goes_on_there_fails",
    ),
    "A model with `sequence_batching` is never embedded": (PLAN + "test_a_sequence_model_is_never_embedded",),
    "One that has had its last response, or an error, does not": (
        "deployments/core/test_iterative_sequences.py::test_a_request_that_has_ended_does_not_run_again",
        "deployments/core/test_iterative_sequences.py::test_a_request_that_is_rescheduled_for_ever_ends_with_its_model",
    ),
    "With `iterative_sequence` a request": (
        SEQUENCE_MODELS + "test_an_iterative_sequence_runs_until_its_model_releases_it",
    ),
    "`TRITONSERVER_DELAY_SCHEDULER` and": (
        HELD + "test_variables_hold_the_first_batch_back",
        HELD + "test_a_sequence_that_follows_one_of_its_id_is_held_as_one_in_the_backlog",
        "deployments/schedulers/test_dynamic.py::test_held_scheduler_starts_when_enough_requests_are_queued",
    ),
}
