"""Faults, and Python models."""

from tests.docs.behaviour.modules import (
    BASED,
    BLS,
    CALLS,
    CAMPAIGN,
    CANCELLED_CALLS,
    CLUSTER,
    CUSTOM_METRICS,
    ENVIRONMENT,
    FAULTS,
    FORKED_CALLS,
    FULL_DISK,
    LANE,
    LATE_ANSWERS,
    LINK,
    LISTENING_CALLS,
    LONE,
    PLAN,
    POISON,
    PROCESSES,
    PYTORCH_PACKAGE,
    PYTORCH_RUNTIME,
    RETRY,
    ROUTING,
    SEVERAL,
    STALLS,
    THREADS,
    TRACED_MODELS,
    TRACING,
)

TESTS: dict[str, tuple[str, ...]] = {
    # Faults
    "A replica that dies while requests are in it": (
        FAULTS + "test_death_of_one_of_two_replicas_loses_no_request",
        LANE + "test_a_request_is_not_sent_again_once_a_response_was_delivered",
    ),
    "With no other replica they wait": (
        FAULTS + "test_death_of_a_lone_replica_fails_no_request",
        LANE + "test_requests_wait_for_the_replica_in_place_of_the_only_one_that_died",
        LANE + "test_requests_wait_for_a_replica_that_is_not_replaced_for_a_minute",
        LANE + "test_nothing_waits_for_a_replica_of_what_was_unloaded",
    ),
    "Readiness and the repository index say meanwhile": (
        FAULTS + "test_death_of_a_lone_replica_fails_no_request",
        ROUTING + "test_a_request_goes_to_a_version_that_is_ready_before_it_waits_for_one_that_died",
    ),
    "A request that kills its replica": (
        RETRY + "test_one_poison_request_costs_few_replicas_and_no_other_request",
        RETRY + "test_what_a_lone_poison_request_costs",
        POISON + "test_nobody_is_blamed_for_what_another_request_or_an_operator_has_killed",
    ),
    "Others wait for each of them": (LONE + "test_others_wait_no_longer_than_they_must",),
    "One that never is alone in that time": (RETRY + "test_a_request_that_never_is_alone_kills_four",),
    "A process that a Python model has forked, itself or through a library": (
        "deployments/lane/test_cut_link.py::"
        "test_requests_to_a_replica_that_is_killed_go_to_another_though_what_it_has_forked_lives_on",
    ),
    "It keeps no connection of the replica open": (
        "deployments/lane/test_parent_descriptors.py::"
        "test_a_child_keeps_no_connection_open_that_was_there_before_it_may_be_forked_and_its_own_ones",
    ),
    "A client that makes the object of its shared memory smaller": (
        "deployments/replica/test_guarded_mapping.py::test_the_process_goes_on_and_the_region_is_refused",
        "e2e/clients/test_clients.py::test_shared_memory_that_shrinks_while_it_is_used_ends_no_process",
    ),
    "An output for which a full `/dev/shm` has no memory": (
        "deployments/replica/test_shared_memory.py::test_an_output_for_which_there_is_no_memory_is_an_error_and_the_next_finds_it_again",
        "deployments/replica/test_guarded_mapping.py::test_an_answer_for_which_a_models_process_has_no_memory_is_sent_to_its_replica",
        "deployments/replica/test_guarded_mapping.py::test_the_process_goes_on_and_the_region_is_refused",
    ),
    "A wall clock that jumps by an hour": (
        "deployments/test_clocks.py::test_no_time_is_taken_from_the_wall_clock_but_what_clients_are_shown",
        "e2e/test_clock_jumps.py::test_the_wall_clock_jumps",
    ),
    "Serve's health checks do": (
        "deployments/control/test_serve_clock.py::"
        "test_a_clock_that_is_set_back_by_an_hour_starts_the_controller_anew_once",
        "deployments/control/test_serve_clock.py::test_a_clock_that_is_put_ahead_or_corrected_by_seconds_does_not",
    ),
    "A controller that stood still": (
        "deployments/control/test_autoscaler.py::"
        "test_a_controller_that_stood_still_takes_no_replica_away_before_it_has_heard_of_the_load",
        "deployments/control/test_canary_watch.py::"
        "test_a_controller_that_stood_still_takes_no_canary_on_before_it_has_heard_how_it_did_meanwhile",
    ),
    "An ingress that did so reads": (
        "app/http/test_time_limits.py::test_after_a_standstill_what_a_client_has_sent_meanwhile_is_read_first",
    ),
    "It kills only one when it was alone": (
        FAULTS + "test_request_that_kills_its_replica_is_answered_and_not_sent_to_the_next",
        RETRY + "test_what_a_lone_poison_request_costs",
        RETRY + "test_a_request_that_was_the_only_one_of_its_ingress_is_not_blamed_for_what_another_sent",
        "deployments/lane/test_death_mark.py::test_process_that_ends_itself_says_how",
    ),
    "The log of the ingress says which": (
        LINK + "test_a_replica_that_ended_itself_is_logged_with_its_mark",
        LINK + "test_a_replica_that_somebody_has_killed_is_not_said_to_have_ended_itself",
    ),
    "Requests that were with it are answered": (
        RETRY + "test_one_poison_request_costs_few_replicas_and_no_other_request",
    ),
    "A request is not blamed for replicas that somebody else killed": (
        FAULTS + "test_request_that_is_alone_in_a_replica_that_is_killed_is_answered_by_the_other",
        POISON + "test_nobody_is_blamed_for_what_another_request_or_an_operator_has_killed",
    ),
    "One that was in two deaths waits": (RETRY + "test_a_request_that_was_in_two_deaths_waits_for_a_replica",),
    "The repository index says UNAVAILABLE": (
        FAULTS + "test_death_of_a_lone_replica_fails_no_request",
        FAULTS + "test_models_are_back_after_their_replicas_died_for_a_while",
    ),
    "While one of several replicas is replaced": (
        FAULTS + "test_request_that_kills_its_replica_is_answered_and_not_sent_to_the_next",
    ),
    "What Serve gives up though it ran": (
        "deployments/control/test_reconciler.py::"
        "test_what_ran_and_has_been_given_up_by_serve_is_deployed_again_until_it_runs",
        FAULTS + "test_models_are_back_though_the_controller_of_serve_died_with_their_replica",
    ),
    "While new replicas fail": (
        "deployments/control/test_status_reader.py::"
        "test_a_model_whose_replicas_do_not_come_up_again_has_the_reason_in_the_index",
    ),
    "A packed or embedded model that had been loaded": (
        "e2e/test_failed_starts.py::test_a_model_that_fails_in_a_new_process_is_tried_again_there",
        "deployments/control/test_second_tries.py::test_what_had_been_loaded_is_tried_again_later_each_time",
    ),
    "The index says why it failed, and that": (
        "e2e/test_failed_starts.py::test_a_model_that_fails_in_a_new_process_is_tried_again_there",
    ),
    "Whatever a model raises": (FAULTS + "test_interrupt_raised_by_a_model_fails_its_requests_and_the_model_goes_on",),
    "A model with an instance that is stuck": (FAULTS + "test_replica_whose_model_is_stuck_is_replaced",),
    "A replica or ingress whose event loop stands still": (
        STALLS + "test_a_process_whose_loop_stands_still_ends_with_its_stacks",
        STALLS + "test_all_others_go_on",
    ),
    "While models load it may take ten minutes": (STALLS + "test_all_others_go_on",),
    "The stacks of its threads are logged": (STALLS + "test_a_process_whose_loop_stands_still_ends_with_its_stacks",),
    "A full disk under Ray's folder": (FULL_DISK,),
    "Ray's object store": (
        "app/cli/test_local_ray.py::test_rays_object_store_fits_into_shared_memory_and_leaves_memory",
    ),
    "What an ingress has no descriptor": (
        "app/http/test_exhausted_machine.py::test_what_the_machine_has_no_more_of_is_told_with_503",
        "app/grpc/test_unary.py::test_what_the_machine_has_no_more_of_is_told",
        "app/http/test_few_descriptors.py::test_clients_beyond_the_descriptors_cost_nothing_but_their_own_answer",
    ),
    "So is what there is no memory for between a replica": (
        "deployments/backends/test_python_areas.py::test_a_batch_that_the_machine_has_no_memory_for_is_told_to_come_back",
    ),
    "Lines that a log has no room for": (
        "deployments/log/test_process_log.py::test_a_full_disk_is_no_news_to_the_log_that_lies_on_it",
    ),
    "Clients that connect anew lose no request": (CAMPAIGN + "test_a_node_dies",),
    "Under twice the load that fits": (
        CAMPAIGN + "test_under_twice_the_load_that_fits_every_client_hears_at_once_that_it_must_come_back",
    ),
    "A 200 has waited for little longer": (
        CAMPAIGN + "test_under_twice_the_load_that_fits_every_client_hears_at_once_that_it_must_come_back",
    ),
    "Serve's controller may die": (CAMPAIGN + "test_the_controller_of_serve_dies",),
    "With Ray's tables in Redis": (CAMPAIGN + "test_the_head_dies_and_comes_back",),
    "A load waits for the head": (CAMPAIGN + "test_the_head_dies_and_comes_back",),
    "Nodes do so for": (CAMPAIGN + "test_the_head_dies_and_comes_back",),
    "A model whose GPU has failed": (
        FAULTS + "test_replica_whose_model_has_lost_its_gpu_is_replaced",
        "deployments/core/test_instance_pool.py::test_an_instance_that_has_lost_its_gpu_says_so",
        "deployments/backends/test_gpu_fault.py::test_errors_that_cuda_never_recovers_from_are_known",
    ),
    "That holds for a Python model that catches the error": (
        "deployments/replica/test_lost_gpus.py::test_an_error_that_a_model_has_caught_is_of_a_lost_gpu_if_cuda_says_so",
        "deployments/replica/test_lost_gpus.py::test_so_is_one_that_a_decoupled_model_has_sent",
    ),
    "A request that is cancelled ends wherever its steps run": (
        "deployments/replica/test_host_router.py::test_a_cancelled_ensemble_ends_when_its_step_is_in_another_process",
    ),
    "Errors of Serve, or of a replica, when the controller asks": (
        "e2e/test_serve_errors.py::test_errors_of_serve_or_of_a_replica_end_no_task_of_the_controller",
    ),
    "The controller may die": (
        FAULTS + "test_clients_do_not_notice_the_death_of_the_controller",
        SEVERAL + "test_settings_outlive_the_controller",
    ),
    "After a node's death Serve calls": (CLUSTER + "test_application_is_healthy_again_after_a_node_has_died",),
    "that is quick on average and slow for one input in twenty": (
        "deployments/core/test_inline_gate.py::test_inputs_that_are_slow_now_and_then_stall_the_loop_a_few_times_only",
    ),
    "A node that dies, or whose network is cut": (
        "deployments/lane/test_cut_link.py::"
        "test_requests_to_a_node_that_is_cut_off_end_in_time_and_those_to_a_process_that_stands_still_do_not",
    ),
    "A process that merely stands still": (
        "deployments/lane/test_cut_link.py::"
        "test_requests_to_a_node_that_is_cut_off_end_in_time_and_those_to_a_process_that_stands_still_do_not",
    ),
    "Where Ray takes its node for dead meanwhile": (
        "deployments/lane/test_replacement.py::"
        "test_what_a_replica_has_that_stands_still_and_is_gone_for_serve_goes_to_another",
        "deployments/lane/test_replacement.py::test_what_a_replica_has_that_was_off_the_list_for_a_while_stays_there",
    ),
    "A replica to which no lane can be opened": (
        LINK + "test_a_lane_that_cannot_be_opened_is_logged_with_its_reason",
        LINK + "test_a_refused_lane_is_logged_with_the_replicas_words_once",
    ),
    "Where a replica's Unix socket cannot be reached": (
        "deployments/lane/test_link.py::test_tcp_is_taken_where_the_unix_socket_cannot_be_reached",
    ),
    # Processes of Python models
    "Each instance of a Python model has a process of its own": (
        PLAN + "test_divides_instances_into_replicas",
        PLAN + "test_packs_cpu_models_together",
    ),
    "A single instance that is alone in its replica": (PLAN + "test_divides_instances_into_replicas",),
    "One whose files name signal handlers, or whose `initialize` sets one": (
        "deployments/backends/test_python_loading.py::test_a_model_that_sets_signal_handlers_gets_a_process_of_its_own",
    ),
    "So has one whose files show that it starts processes": (
        FORKED_CALLS + "test_processes_that_a_model_spawns_find_its_functions",
    ),
    "Without a process of its own a model has a thread": (
        THREADS + "test_what_a_model_binds_to_its_thread_when_it_loads_is_there_in_each_batch",
        THREADS + "test_what_a_library_binds_to_the_thread_of_a_model_is_there_in_each_batch",
        THREADS + "test_a_model_has_an_event_loop_that_does_not_run_from_its_initialize_on",
        "deployments/replica/test_model_host.py::test_a_python_model_with_a_queue_policy_leaves_the_loop_to_its_queue",
    ),
    "is three such processes behind one queue": (
        PROCESSES + "test_count_is_instances_behind_one_queue_which_run_at_the_same_time",
    ),
    "A process that dies, by a signal": (PROCESSES + "test_a_death_costs_its_own_batch_and_the_instance_comes_back",),
    "It is started again at once, and after": (
        PROCESSES + "test_a_process_that_dies_again_and_again_is_started_less_and_less_often",
    ),
    "What waits in the queue when there has been none": (
        "deployments/schedulers/test_outage.py::test_what_waits_for_a_minute_without_an_instance_is_unavailable",
        "deployments/schedulers/test_outage.py::test_sequences_that_wait_for_a_minute_without_an_instance_are_unavailable",
    ),
    "Other instances serve meanwhile": (
        PROCESSES + "test_other_instances_serve_while_one_is_started_again",
        PROCESSES + "test_a_death_costs_its_own_batch_and_the_instance_comes_back",
    ),
    "The sequences of an instance that dies": (PROCESSES + "test_the_sequences_of_an_instance_that_dies_are_over",),
    "Until it is back, sequences start on the others": (PROCESSES + "test_new_sequences_go_to_instances_that_live",),
    "Modules, pickles and the working folder": (
        PROCESSES + "test_what_one_model_does_to_its_process_is_nothing_to_another",
    ),
    "What such a process forks may call other models": (
        FORKED_CALLS + "test_processes_that_a_model_forks_call_too",
        FORKED_CALLS + "test_what_a_model_forks_is_refused_at_once_where_nothing_said_that_it_forks",
    ),
    "A batch that takes longer than `eagleray.execution_timeout_ms`": (PROCESSES + "test_a_batch_that_hangs_is_ended",),
    "`EXECUTION_ENV_PATH` names a folder": (
        ENVIRONMENT + "test_a_folder_is_the_environment",
        ENVIRONMENT + "test_the_configuration_is_completed_in_the_environment",
        ENVIRONMENT + "test_an_archive_beside_the_model_is_unpacked_once",
        ENVIRONMENT + "test_what_is_wrong_with_an_environment_is_said",
    ),
    "An archive is unpacked once for each": (
        ENVIRONMENT + "test_an_archive_beside_the_model_is_unpacked_once",
        ENVIRONMENT + "test_an_archive_that_reaches_out_of_its_folder_is_refused",
    ),
    "What no model uses, and none has begun to use": (
        ENVIRONMENT + "test_what_nobody_uses_is_removed_when_another_is_unpacked",
    ),
    "When a replica ends in order, `finalize`": (
        PROCESSES + "test_closing_calls_finalize_and_leaves_no_process",
        PROCESSES + "test_the_death_of_the_replica_ends_its_processes",
    ),
    # Python models
    "A configuration is completed (`auto_complete_config`)": (
        "e2e/test_storage.py::test_a_configuration_is_completed_on_a_node_that_the_model_may_run_on",
        "deployments/control/test_node_completion.py::test_a_node_completes_with_its_own_files_and_variables",
        "deployments/control/test_node_completion.py::test_it_may_run_where_its_configuration_lets_it",
        "deployments/control/test_node_completion.py::test_without_a_node_that_it_may_run_on_it_is_asked_here",
    ),
    "A Python model may have no inputs": ("behaviours/test_behaviours.py::test_behaviour",),
    "A Python model finds an empty command line": ("behaviours/test_behaviours.py::test_behaviour",),
    "What it makes builtin while it is loaded": (
        "deployments/backends/test_python_model_module.py::test_what_a_model_makes_builtin_is_builtin_for_it",
    ),
    "Where `pb_utils` takes a string": ("deployments/backends/test_python_pb_utils.py::test_text_may_be_bytes",),
    "An input that is named twice in a call": (CALLS + "test_an_input_that_is_named_twice_is_refused_in_a_call",),
    "`auto_complete_config` completes inputs and outputs": (
        "deployments/backends/test_python_auto_complete.py::test_completes_tensors_of_which_the_configuration_says_a_part",
        "deployments/backends/test_python_auto_complete.py::test_failure_is_the_reason",
        "behaviours/test_behaviours.py::test_behaviour",
    ),
    "A Python-based backend is `<backend>/model.py`": (
        BASED + "test_the_backends_code_is_the_models",
        BASED + "test_a_model_may_bring_its_backend",
        BASED + "test_a_backends_name_never_leaves_the_directory",
        "deployments/backends/test_python_model_module.py::test_a_python_based_backend_finds_what_stands_beside_it",
    ),
    "PyTorch models may be Python code": (
        f"{PYTORCH_RUNTIME}test_a_class_with_its_weights_answers_each_request_of_a_batch",
        f"{PYTORCH_RUNTIME}test_torchscript_may_be_all",
        "behaviours/test_behaviours.py::test_behaviour",
    ),
    "Of several classes it is the first by name": (
        f"{PYTORCH_RUNTIME}test_a_class_with_its_weights_answers_each_request_of_a_batch",
    ),
    "Inputs and outputs go by their order": ("behaviours/test_behaviours.py::test_behaviour",),
    "The tensors of a `model.pt2`": (
        f"{PYTORCH_PACKAGE}test_tensors_are_called_by_their_place_their_index_or_their_order",
        f"{PYTORCH_PACKAGE}test_a_single_output_may_do_without_brackets",
    ),
    "A place that is not there": (f"{PYTORCH_PACKAGE}test_names_of_what_is_not_there_are_refused",),
    "An input of another size than the package": (
        f"{PYTORCH_PACKAGE}test_an_input_of_another_size_than_it_was_exported_for_is_not_read",
        f"{PYTORCH_PACKAGE}test_an_input_that_is_smaller_than_one_that_was_to_be_as_large_is_not_read",
    ),
    "Requests that fit alone": (f"{PYTORCH_PACKAGE}test_requests_run_alone_where_the_number_of_rows_was_fixed",),
    "`torch.compile` compiles such a model": (
        f"{PYTORCH_RUNTIME}test_a_class_with_its_weights_answers_each_request_of_a_batch",
    ),
    "`TORCH_COMPILE_OPTIONAL_PARAMETERS`": (
        f"{PYTORCH_RUNTIME}test_threads_are_those_of_its_parameter",
        f"{PYTORCH_RUNTIME}test_what_cannot_be_loaded_is_said",
    ),
    "What cannot be compiled, as where": (f"{PYTORCH_RUNTIME}test_what_cannot_be_compiled_runs_as_it_is",),
    "Its models have only their data in the repository": ("behaviours/test_behaviours.py::test_behaviour",),
    "The environment `pb_exec_env_model.py.tar.gz`": (
        BASED + "test_the_environment_beside_the_backend_is_the_models_unless_it_names_one",
    ),
    "Eagleray's own backends come first": (
        BASED + "test_a_backend_of_eaglerays_own_comes_first_unless_runtime_says_otherwise",
    ),
    "A change of the backend is taken": (BASED + "test_a_changed_backend_makes_another_revision",),
    "A model calls others": (
        CALLS + "test_a_model_calls_models_of_its_process",
        CALLS + "test_a_tensor_goes_to_a_model_of_the_same_process_without_a_copy",
        BLS + "test_a_model_calls_models_of_other_processes",
    ),
    "A called model cannot write": (CALLS + "test_a_called_model_cannot_write_to_its_callers_tensors",),
    "A call that is given `trace": (CALLS + "test_a_trace_goes_on_in_calls_that_are_given_it",),
    "Where spans are exported, `get_context()`": (
        TRACING + "test_a_models_call_of_a_model_on_another_node_is_its_child",
        TRACED_MODELS + "test_what_a_model_logs_has_the_ids_of_the_trace",
    ),
    "Where such a request is traced": (
        TRACED_MODELS + "test_a_call_that_is_given_the_trace_is_a_child_of_it",
        TRACED_MODELS + "test_a_call_over_a_lane_is_a_child_too",
    ),
    "What goes wrong with a call": (CALLS + "test_errors_are_responses_with_tritons_texts",),
    "The future of `async_exec(decoupled=True)`": (
        "deployments/replica/test_decoupled_calls.py::test_async_exec_of_a_decoupled_model_is_done_with_the_first_response",
        "deployments/replica/test_decoupled_calls.py::test_a_decoupled_call_is_given_up_with_the_future_of_its_first_response",
    ),
    "What a model has sent through its response sender": (
        "deployments/backends/test_python_backend.py::test_what_the_sender_has_sent_stays_when_the_model_fails_afterwards",
    ),
    "A model that is not decoupled gets its next batch when `execute` has returned": (
        LATE_ANSWERS + "test_an_instance_runs_the_next_batch_while_requests_of_others_are_unanswered",
        LATE_ANSWERS + "test_a_short_request_overtakes_a_long_one_which_an_unload_waits_for",
    ),
    "Models with sequence batching, `preserve_ordering`": (
        LATE_ANSWERS + "test_answers_that_are_to_come_in_order_or_in_time_are_waited_for",
    ),
    "The caller may write to the outputs": (
        "deployments/replica/test_model_calls.py::test_a_model_may_write_to_what_it_is_answered",
    ),
    "A decoupled model is loaded when its warm-up": (
        "deployments/core/test_warm_streams.py::test_a_model_is_loaded_when_its_samples_are_answered_to_the_end",
        "deployments/core/test_warm_streams.py::test_a_sample_that_fails_while_it_is_answered_fails_the_load",
    ),
    "An output of another datatype than": ("behaviours/test_behaviours.py::test_behaviour",),
    "The next step of an ensemble, or a called model, does not take it": (
        "behaviours/test_behaviours.py::test_behaviour",
    ),
    "An output that no datatype describes": (
        "behaviours/test_behaviours.py::test_behaviour",
        "deployments/backends/test_python_backend.py::test_what_has_no_datatype_fails_only_its_request",
    ),
    "A call that could wait for ever": (
        CALLS + "test_a_model_that_calls_itself_is_told_so",
        CALLS + "test_so_is_one_that_comes_back_through_an_ensemble",
        BLS + "test_models_that_would_wait_for_each_other_are_told_so",
    ),
    "Versions of a model may call each other": (
        CALLS + "test_a_version_calls_another_of_its_model_and_none_that_calls_it_back",
        "protocol/test_callers.py::test_entries_travel_with_versions_and_as_earlier_processes_say_them_without",
    ),
    "When all requests that a model runs": (CALLS + "test_a_cancelled_request_ends_the_calls_that_are_made_for_it",),
    "`cancel()` of the responses of a decoupled call": (
        CANCELLED_CALLS + "test_a_cancelled_stream_gives_what_its_model_still_sends",
        LISTENING_CALLS + "test_the_model_hears_of_it_and_the_sink_what_the_model_sends_then",
    ),
    "A decoupled call ends with an error when": (
        "deployments/backends/test_python_unread_responses.py"
        "::test_responses_that_a_model_does_not_read_end_the_call_when_they_are_too_large_together",
    ),
    "A request that no model has got yet": (
        CANCELLED_CALLS + "test_one_whose_request_still_waits_ends_as_cancelled",
        LISTENING_CALLS + "test_one_that_is_being_decoded_ends_as_cancelled_and_reaches_no_model",
    ),
    "A call on the thread of an event loop": (CALLS + "test_a_model_that_hides_its_calls_leaves_the_loops_thread",),
    "A call of a model that has no replica at the moment": (
        "deployments/replica/test_far_model_calls.py::test_a_call_wakes_a_model_without_a_replica_and_waits_for_it",
        "deployments/replica/test_far_model_calls.py::test_a_call_of_a_model_whose_last_replica_died_waits_for_the_next",
    ),
    "`is_model_ready` says no from the moment on": (
        "deployments/replica/test_far_model_calls.py::test_a_model_that_was_unloaded_is_neither_ready_nor_asked_though_it_is_here_for_a_moment",
    ),
    "A model loads and unloads others": (
        BLS + "test_a_model_loads_and_unloads_others",
        BLS + "test_a_model_loads_another_while_it_is_loading",
        BLS + "test_a_model_that_is_loaded_when_its_process_starts_loads_another_of_that_process",
        "deployments/control/test_model_commands.py::test_models_are_loaded_in_explicit_mode_only",
    ),
    "Where the controller dies before it has answered, its successor": (
        "deployments/replica/test_directory_neighbours.py::"
        "test_a_load_by_a_model_is_handed_to_the_next_controller_where_one_dies_before_it_has_answered",
    ),
    "A model with an `is_ready` is asked every second": (
        "deployments/replica/test_readiness.py::test_what_a_model_says_is_known_and_it_serves_on",
        "deployments/replica/test_readiness.py::test_a_model_is_ready_when_all_its_instances_say_so",
        "deployments/replica/test_readiness.py::test_a_model_that_does_not_answer_is_not_ready_and_holds_nobody_up",
        "app/http/test_api.py::test_a_model_that_says_it_is_not_ready_is_not_and_is_served",
    ),
    "Metrics of models' own": (
        CUSTOM_METRICS + "test_what_was_counted_adds_up_whatever_the_descriptions_say",
        CUSTOM_METRICS + "test_processes_of_a_node_add_up_and_a_death_takes_its_gauges_alone",
        CUSTOM_METRICS + "test_a_gauge_is_shown_for_as_long_as_a_model_has_it",
        BLS + "test_a_model_calls_models_of_other_processes",
    ),
    "It is shown as long as the model keeps it": (
        CUSTOM_METRICS + "test_a_gauge_is_shown_for_as_long_as_a_model_has_it",
    ),
    "A gauge is what was last set": (
        CUSTOM_METRICS + "test_processes_of_a_node_add_up_and_a_death_takes_its_gauges_alone",
        CUSTOM_METRICS + "test_a_gauge_is_shown_for_as_long_as_a_model_has_it",
    ),
    "A histogram has the buckets that its model gives it now": (
        CUSTOM_METRICS + "test_a_histogram_has_the_buckets_that_its_model_gives_it_now",
    ),
    "Metrics that Prometheus could not read": (
        CUSTOM_METRICS + "test_what_prometheus_could_not_read_is_refused",
        CUSTOM_METRICS + "test_the_number_of_metrics_is_bounded",
        CUSTOM_METRICS + "test_names_of_the_servers_own_metrics_are_left_to_it",
    ),
}
