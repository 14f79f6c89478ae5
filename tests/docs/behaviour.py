"""Which tests check which sentence of `docs/behaviour.md`.

A key is words that one sentence (or row of a table) of the page holds, a value the tests that check it, as
`path::function` below `tests/`. Whoever writes a sentence names its test here.
"""

HOSTILE = "e2e/test_hostile_http.py::test_case_gets_its_answer_and_the_server_goes_on"
HTTP = "app/http/test_connection.py::"
TIMES = "app/http/test_time_limits.py::"
BACK_PRESSURE = "app/http/test_back_pressure.py::"
ANSWERS = "app/http/test_answers.py::"
FAULTS = "e2e/test_faults.py::"
FULL_DISK = "e2e/test_faults_under_traffic.py::test_a_disk_fills_up"
STALLS = "deployments/replica/test_stall_guard.py::"
STARTING = "app/service/test_starting.py::"
LOG = "deployments/log/test_process_log.py::"
SLOW = "deployments/log/test_slow_requests.py::"
REFUSALS = "app/service/test_refusal_log.py::"
COMMANDS = "e2e/test_command_line.py::"
NAMESAKES = "e2e/test_namesakes.py::"
COPIED = "e2e/test_copied_ensembles.py::"
ROUTING = "app/service/test_routing.py::"
LANE = "deployments/lane/test_lane.py::"
LINK = "deployments/lane/test_link.py::"
ACCESS = "e2e/test_access.py::"
CONSOLE = "e2e/test_console.py::"
CONSOLE_API = "app/http/test_console_api.py::"
KEYS = "app/http/test_api_keys.py::"
RETRY = "deployments/lane/test_retry.py::"
POISON = "deployments/lane/test_poison_properties.py::"
LONE = "deployments/lane/test_lone_requests.py::"
INDEX = "e2e/test_repository_index.py::"
STATISTICS = "e2e/test_statistics.py::"
SEVERAL = "e2e/test_several_ingresses.py::"
HANDLE_CALLS = "deployments/replica/test_handle_calls.py::"
PLAN = "repository_loader/test_plan.py::"
CARD_PLAN = "repository_loader/test_card_plan.py::"
CLUSTER = "e2e/test_cluster.py::"
TESTING = "deployments/backends/test_testing.py::"
STORAGE = "repository_loader/storage/"
SCALING = "e2e/test_autoscaling.py::"
TRAFFIC = "e2e/test_traffic.py::"
SPLIT = "app/traffic/test_split_target.py::"
CANARY = "deployments/control/test_canary.py::"
SHARES = "repository_loader/test_traffic.py::"
MIRROR = f"{STORAGE}test_mirror.py::"
CACHED = "deployments/schedulers/test_cached.py::"
SEQUENCES = "deployments/schedulers/test_sequence.py::"
SEQUENCE_LANES = "deployments/lane/test_sequence_lanes.py::"
SEQUENCE_MODELS = "deployments/core/test_sequence_models.py::"
CONTROL = "e2e/test_model_control.py::"
POLL = "e2e/test_poll.py::"
REPOSITORIES = "deployments/control/test_repository_commands.py::"
SHARED_NAMES = (
    "app/http/test_shared_names.py::test_a_name_of_two_is_refused_in_tritons_words_and_their_identifiers_are_answered"
)
NAMESPACES = "repository_loader/test_namespaces.py::"
CAMPAIGN = "e2e/test_fault_campaign.py::"
PROCESSES = "deployments/replica/test_model_processes.py::"
ENVIRONMENT = "deployments/backends/test_python_environment.py::"
RETURNING = "deployments/schedulers/test_returning_clients.py::"
ROW_SPLIT = "deployments/backends/test_row_split.py::"

ARBITER = "deployments/core/test_arbiter.py::"
ENSEMBLES = "e2e/test_ensembles.py::"
BRANCHES = "deployments/schedulers/test_branching_ensemble.py::"
CALLS = "deployments/replica/test_model_calls.py::"
FORKED_CALLS = "deployments/replica/test_forked_model_calls.py::"
TRACING = "e2e/test_tracing.py::"
TRACED_MODELS = "deployments/replica/test_traced_models.py::"
BLS = "e2e/test_bls.py::"
BASED = "repository_loader/test_python_based_backend.py::"
ALERTS = "deploy/test_prometheus.py::"
OWN_METRICS = "app/metrics/test_eagleray_metrics.py::"
METRICS = "app/metrics/test_triton_metrics.py::"
CUSTOM_METRICS = "app/metrics/test_custom_metrics.py::"

TESTS: dict[str, tuple[str, ...]] = {
    # Rate limiter
    "With `--rate-limit execution_count`": (
        "deployments/replica/test_node_rate_limiter.py::test_instances_of_two_processes_run_one_after_the_other",
        ARBITER + "test_a_batch_waits_for_its_instances_turn",
    ),
    "An instance that is loaded later counts": (ARBITER + "test_who_comes_late_takes_turns_with_who_has_had_many",),
    "Of the instances that wait, the one runs next": (
        ARBITER + "test_turns_go_by_priority",
        ARBITER + "test_what_needs_much_is_not_starved_and_holds_up_nobody_else",
    ),
    "What a process holds is free as soon as": (
        "deployments/replica/test_node_rate_limiter.py::test_a_holder_that_is_killed_frees_what_it_held",
        "deployments/replica/test_node_rate_limiter.py::test_what_is_held_stays_held_while_the_arbiter_changes",
        ARBITER + "test_who_is_gone_holds_nothing",
    ),
    "A model that needs more than `--rate-limit-resource`": (
        ARBITER + "test_what_can_never_run_is_refused_in_tritons_words",
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
    "An error of a step names the step": (
        "deployments/core/test_loaded_ensembles.py::test_ensemble_runs_over_models_of_the_same_core",
    ),
    "When a client leaves, the steps of its request": (
        ENSEMBLES + "test_steps_of_clients_that_have_left_do_not_run",
        ENSEMBLES + "test_a_client_that_leaves_the_stream_of_an_ensemble_stops_its_step",
    ),
    "A tensor passes between models of one process": (
        "deployments/core/test_loaded_ensembles.py::test_tensors_between_steps_of_a_core_are_the_same_memory",
        "deployments/core/test_loaded_ensembles.py::test_independent_steps_run_at_the_same_time",
    ),
    "Each sentence here is one that a test checks": ("docs/test_behaviour_page.py::test_every_sentence_has_a_test",),
    # Limits
    "| request body |": (
        HOSTILE,
        "e2e/test_bad_input.py::test_body_over_the_limit_is_refused_and_the_next_connection_serves",
    ),
    "| request bodies of an ingress together": (BACK_PRESSURE + "test_bodies_under_way_are_bounded_in_total",),
    "| request head |": (
        HOSTILE,
        HTTP + "test_limits_are_inclusive",
        HTTP + "test_refuses_what_is_not_http_and_closes",
    ),
    "| time for a head to arrive |": (
        HTTP + "test_a_slow_head_and_a_slow_body_time_out",
        HTTP + "test_a_connection_on_which_no_head_begins_is_closed",
        HOSTILE,
    ),
    "| time for a body to arrive |": (HTTP + "test_a_slow_head_and_a_slow_body_time_out", HOSTILE),
    "| time for a client to take 64 KiB": (
        TIMES + "test_a_client_that_takes_nothing_of_its_answer_is_given_up",
        TIMES + "test_a_client_that_takes_64_kib_in_time_is_not_given_up",
        TIMES + "test_a_client_that_takes_one_byte_at_a_time_is_given_up",
    ),
    "| time without a request on a connection |": (
        TIMES + "test_a_connection_without_a_request_is_closed_when_its_time_is_over",
    ),
    "| silence of a client's machine": (
        TIMES + "test_the_kernel_finds_out_which_clients_have_vanished",
        "app/grpc/test_tritonclient.py::test_the_kernel_finds_out_which_clients_have_vanished",
    ),
    "| chunks of a chunked body |": (HOSTILE,),
    "| open connections of an ingress |": (
        HTTP + "test_a_connection_over_the_limit_is_refused",
        TIMES + "test_the_connection_that_was_idle_for_longest_gives_way_to_a_new_one",
        TIMES + "test_none_gives_way_that_is_in_use",
        "app/http2/test_abuse.py::test_a_connection_that_is_idle_gives_way_to_a_new_one",
        "app/http2/test_abuse.py::test_a_connection_without_requests_gives_way_whatever_else_it_sends",
        "app/http2/test_abuse.py::test_the_connection_whose_last_request_is_oldest_gives_way",
        "app/http2/test_abuse.py::test_a_connection_that_is_in_use_does_not_give_way",
    ),
    "| gRPC requests of an ingress together": (
        "app/grpc/test_wire.py::test_requests_that_have_come_in_part_are_bounded_over_all_connections",
        "app/http2/test_abuse.py::test_frames_that_have_come_in_part_are_bounded_over_all_connections",
        "app/grpc/test_wire.py::test_a_message_of_which_the_client_never_says_that_it_is_all_is_given_up",
    ),
    "| answers of an ingress together that wait": (
        BACK_PRESSURE + "test_answers_that_wait_for_slow_readers_are_bounded_over_all_connections",
        "app/grpc/test_wire.py::test_answers_that_clients_do_not_take_are_bounded_over_all_connections",
        "app/grpc/test_wire.py::test_an_answer_that_is_in_the_buffer_of_a_socket_counts_as_one_that_clients_do_not_take",
    ),
    "| compressed requests and answers of an ingress": (
        "deployments/lane/test_work_queue.py::test_what_comes_first_is_done_first_by_as_many_threads_as_there_are",
        "deployments/lane/test_work_queue.py::test_what_is_withdrawn_is_let_go_of_at_once",
        "app/grpc/test_unpacking.py::test_a_message_of_a_call_that_is_over_is_not_unpacked",
        "app/grpc/test_unpacking.py::test_an_answer_of_a_call_that_is_over_is_not_packed",
        "app/http/test_infer_exchange.py::test_what_a_client_that_leaves_has_sent_or_would_get_is_let_go_of",
        "app/http/test_large_json.py::test_what_a_client_that_leaves_has_sent_is_let_go_of",
        "app/http/test_large_json.py::test_strings_that_nobody_waits_for_are_let_go_of",
        "deployments/lane/test_slow_codec.py::test_what_is_given_up_while_it_waits_for_its_turn_is_let_go_of",
    ),
    "| time for a TLS handshake |": (
        "app/http/test_listening.py::test_a_handshake_must_be_complete_in_time",
        "app/grpc/test_tls.py::test_a_handshake_must_be_complete_in_time",
    ),
    "| time in which a client of a unary gRPC call": (
        "app/grpc/test_wire.py::test_a_message_of_which_the_client_never_says_that_it_is_all_is_given_up",
        "app/grpc/test_wire.py::test_a_request_that_is_complete_has_as_long_as_its_model_takes",
    ),
    "| requests under way to one replica |": (
        LANE + "test_requests_under_way_are_bounded",
        LANE + "test_bytes_under_way_are_bounded",
    ),
    "| queue of a model, in each of its replicas": (
        "deployments/schedulers/test_queue_bound.py::test_waits_are_bounded_under_overload_and_what_does_not_fit_is_refused_at_once",
        "deployments/schedulers/test_queue_bound.py::test_many_requests_at_once_are_all_taken",
        "deployments/schedulers/test_queue_bound.py::test_a_slow_model_keeps_few_waiting",
    ),
    "| queue of a model with a `default_queue_policy` |": (
        "deployments/core/test_loader.py::test_queues_are_bounded_unless_the_model_has_a_policy_for_them",
        "deployments/schedulers/test_dynamic.py::test_queue_size_is_per_level_and_a_refused_request_is_counted_as_rejected",
    ),
    "| time that one batch may run": (
        "deployments/core/test_instance_pool.py::test_batch_that_never_ends_is_answered_and_its_instance_given_up",
    ),
    "| JSON nesting; elements |": (
        "protocol/test_json_tensor.py::test_depth_is_bounded_on_both_sides",
        "protocol/test_json_tensor.py::test_elements_and_bytes_are_bounded_on_both_sides",
        "protocol/test_json_tensor.py::test_elements_are_counted_before_they_are_parsed",
        "protocol/test_json_tensor.py::test_limits_follow_a_raised_input_size",
    ),
    "| JSON of a request that is neither inference nor load": (
        "app/http/test_api.py::test_what_is_no_inference_has_little_json_and_a_load_few_members",
    ),
    "| inputs, outputs, parameters of a request |": (
        "protocol/test_http_infer.py::test_limits_hold_on_both_sides",
        "protocol/test_http_infer.py::test_the_number_of_inputs_is_bounded",
        "protocol/test_grpc_infer.py::test_limits_hold_on_both_sides",
    ),
    "| tensor rank; one dimension |": ("protocol/test_normalise.py::test_bounds_hold_on_both_sides",),
    "| one BYTES element |": (
        "protocol/test_bytes_tensor.py::test_element_length_is_bounded",
        "protocol/test_json_tensor.py::test_limits_follow_a_raised_input_size",
    ),
    "| instances of a model, and threads": (
        "repository_loader/test_loadability.py::test_what_loading_would_refuse_is_refused_with_its_place",
        "repository_loader/test_validation.py::test_refuses",
        "deployments/core/test_loader.py::test_sample_of_too_many_rows_or_runs_fails_the_load",
        "deployments/core/test_loader.py::test_sample_that_cannot_be_made_fails_the_load",
    ),
    "| path of a file that is sent with a load |": (
        "deployments/replica/test_override_files.py::test_a_path_that_leaves_the_model_is_refused",
    ),
    "| `config.pbtxt` | 1 MiB |": (
        "repository_loader/test_hostile_files.py::test_the_largest_file_is_read_in_seconds",
    ),
    # HTTP
    "A malformed request is answered once": (HOSTILE, HTTP + "test_refuses_what_is_not_http_and_closes"),
    "well-formed HTTP and wrong otherwise": ("e2e/test_hostile_http.py::test_case_of_the_codec_keeps_its_connection",),
    "Refused outright": (HOSTILE,),
    "A refused request is read to its end": (
        BACK_PRESSURE + "test_the_refusal_of_too_large_a_body_reaches_a_client_that_goes_on_sending",
        BACK_PRESSURE + "test_a_client_that_never_stops_sending_is_cut_off",
        TIMES + "test_who_goes_on_sending_what_was_refused_is_left_after_10_s",
    ),
    "What `--http-restricted-api` forbids": (
        ANSWERS + "test_a_restricted_request_is_refused_before_its_body_is_sent",
        ANSWERS + "test_a_small_restricted_request_leaves_the_connection_open",
    ),
    "Every answer has a `Date`": (
        ANSWERS + "test_every_answer_has_a_date",
        ANSWERS + "test_the_date_is_that_of_the_answer",
        ANSWERS + "test_http_1_0_is_told_that_the_connection_stays",
    ),
    "Pipelined requests are answered in order": (HTTP + "test_answers_pipelined_requests_in_order",),
    "However many there are, and in however many chunks": (
        "app/http/test_stalls.py::test_no_turn_of_the_loop_is_long",
    ),
    "When a client disconnects": (
        "deployments/schedulers/test_fifo.py::test_cancelled_requests_leave_the_queue_while_no_batch_is_formed",
        HTTP + "test_cancels_what_is_under_way_when_the_client_leaves",
        FAULTS + "test_client_that_goes_away_in_the_queue_costs_nothing",
    ),
    "Error bodies are one sentence": (HOSTILE, ANSWERS + "test_error_bodies_are_at_most_a_kibibyte"),
    "503 carries `Retry-After: 1`": (HTTP + "test_tells_an_unavailable_client_to_try_again",),
    # Readiness
    "`/v2/health/live` answers": (STARTING + "test_http_is_live_and_not_ready",),
    "`/v2/health/ready` is 200": (
        "e2e/test_metadata.py::test_server_with_broken_models_is_not_ready",
        CLUSTER + "test_deployed_service_is_ready_and_answers",
    ),
    "Until an ingress has heard from the controller": (STARTING + "test_http_answers_503_and_when_to_come_again",),
    "News of 300 models": (
        "app/ingress/test_directory_follower.py::test_news_of_300_models_never_hold_the_loop_for_long",
    ),
    "A model that cannot be loaded is UNAVAILABLE": (INDEX + "test_broken_model_is_unavailable_with_its_reason",),
    "So is one with a pipe or a device among its files": (
        "repository_loader/test_hostile_files.py::test_a_pipe_or_a_device_fails_its_model_and_no_other",
        "repository_loader/test_fingerprint.py::test_more_files_than_a_model_has_are_not_all_looked_at",
    ),
    "An ensemble whose step could not be loaded": (INDEX + "test_broken_model_is_unavailable_with_its_reason",),
    "A request with much JSON": (
        "app/http/test_large_json.py::test_large_json_does_not_stop_the_loop",
        "app/http/test_large_json.py::test_a_large_json_response_does_not_stop_the_loop",
        "app/http/test_large_json.py::test_many_strings_do_not_stop_the_loop",
        "app/http/test_large_json.py::test_a_replica_that_models_share_is_sent_binary_in_place_of_much_json",
        "protocol/test_large_responses.py::test_no_other_thread_waits_for_long",
        "app/http/test_load_body.py::test_no_other_thread_waits_for_long",
        "app/grpc/test_load_message.py::test_no_other_thread_waits_for_long",
        "protocol/test_large_responses.py::test_a_long_string_is_written_beside_the_loop",
        "deployments/lane/test_slow_codec.py::test_a_large_request_is_decoded_beside_the_loop_and_small_ones_pass_it",
        "deployments/lane/test_slow_codec.py::test_a_large_response_is_encoded_beside_the_loop_and_later_ones_leave_after_it",
    ),
    # Handles
    "Calls of `handle.infer.remote": (CLUSTER + "test_another_application_composes_two_models_by_their_handles",),
    "Each has an outcome of its own": (
        HANDLE_CALLS + "test_a_call_that_is_wrong_fails_alone",
        HANDLE_CALLS + "test_a_quick_call_does_not_wait_for_a_slow_one",
    ),
    "A call that is cancelled leaves the queue": (HANDLE_CALLS + "test_a_call_that_is_cancelled_leaves_the_queue",),
    # Where models run
    "With `--placement auto` (the default)": (
        PLAN + "test_auto_isolates_what_has_a_reason_and_packs_the_rest",
        PLAN + "test_auto_isolates_what_scales_or_asks_for_nodes",
    ),
    "All others share one process": (PLAN + "test_auto_isolates_what_has_a_reason_and_packs_the_rest",),
    "`eagleray plan` prints the placement": (COMMANDS + "test_plan_prints_the_deployments_of_the_examples",),
    "What `eagleray plan --num-gpus N` prints": (
        "e2e/test_gpus.py::test_replicas_have_the_resources_that_were_planned",
    ),
    "Each number in `gpus` is a card of its own": ("e2e/test_gpus.py::test_listed_gpus_are_different_cards",),
    "What does not fit on a card": (CARD_PLAN + "test_a_gpu_is_not_promised_twice",),
    "GPU and CPU groups of one model are one version": (
        "e2e/test_gpus.py::test_every_kind_of_group_serves",
        "deployments/lane/test_choice.py::test_gpus_come_first_and_the_cpu_gets_what_they_have_no_idle_instance_for",
    ),
    "The CPU gets what this ingress has no idle GPU": (
        "deployments/lane/test_choice.py::test_gpus_come_first_and_the_cpu_gets_what_they_have_no_idle_instance_for",
    ),
    "When one of the groups failed to load": (
        "e2e/test_gpus.py::test_a_version_that_serves_from_its_cpu_group_says_why_its_gpu_group_does_not",
    ),
    "So does a `KIND_AUTO` model that is on the CPU": (
        "deployments/control/test_desired_state.py::"
        "test_models_that_wait_are_placed_when_the_cluster_has_what_they_need",
    ),
    "A model that waits for GPUs or CPUs": (
        CLUSTER + "test_a_model_that_waits_for_a_gpu_is_placed_when_a_node_brings_one",
        CARD_PLAN + "test_what_is_placed_stays_when_the_cluster_grows",
        PLAN + "test_tells_what_the_cluster_can_never_hold",
    ),
    "Ray's autoscaler, where there is one": (
        CARD_PLAN + "test_what_a_grown_cluster_would_hold_is_asked_for",
        CLUSTER + "test_nodes_are_asked_for_as_long_as_a_model_waits_for_them",
        CLUSTER + "test_a_model_that_waits_for_a_gpu_is_placed_when_a_node_brings_one",
    ),
    "A fifth of each GPU's memory stays free": (CARD_PLAN + "test_part_of_a_card_stays_free",),
    "`eagleray.num_gpus` says another share": (PLAN + "test_parameters_of_the_model_come_first",),
    "A model with `eagleray.autoscaling.max_replicas`": (
        "repository_loader/test_autoscaling.py::test_replicas_follow_from_the_load",
        "repository_loader/test_autoscaling.py::test_parameters_are_read",
    ),
    "More come at once": (
        f"{SCALING}test_second_replica_serves_soon_after_the_load_rises_and_goes_after_it_has_fallen",
        "deployments/control/test_autoscaler.py::test_more_replicas_at_once_and_fewer_after_the_delay",
    ),
    "With `min_replicas` 0": (f"{SCALING}test_first_request_waits_for_a_replica_where_there_is_none",),
    "So does the step of an": (f"{SCALING}test_so_does_the_first_request_to_an_ensemble_of_it",),
    "It is ready all the same": (
        f"{SCALING}test_first_request_waits_for_a_replica_where_there_is_none",
        "deployments/lane/test_waiting_calls.py::test_waiting_is_bounded_in_number_bytes_and_time",
    ),
    "`eagleray.accelerator_type` and `eagleray.node_labels` say": (
        CARD_PLAN + "test_needs_of_nodes_reach_the_deployments",
        CLUSTER + "test_a_model_that_waits_for_a_gpu_is_placed_when_a_node_brings_one",
    ),
    "A card that a model of one kind": (CARD_PLAN + "test_a_card_belongs_to_one_kind_of_node",),
    # Loading and unloading
    "With `--model-control-mode explicit` the models": (
        CONTROL + "test_only_chosen_models_are_loaded_and_patterns_choose",
        CONTROL + "test_models_come_and_go_by_http",
        CONTROL + "test_models_come_and_go_by_grpc",
    ),
    "A load is answered when the model is ready": (CONTROL + "test_models_come_and_go_by_http",),
    "in an ensemble whose steps are unloaded with it": (
        "e2e/test_unloaded_ensembles.py::test_what_is_under_way_is_answered",
    ),
    "A reload loads just the versions": (
        CONTROL + "test_instances_and_versions_change_in_place",
        "repository_loader/test_fingerprint.py::test_a_change_concerns_the_versions_that_have_the_file",
    ),
    "What is new is ready and warm before": (
        CONTROL + "test_a_reload_under_load_fails_no_request_and_the_new_answers_come_after_the_old",
        CONTROL + "test_a_new_version_is_ready_before_the_old_one_goes",
    ),
    "When any version of a load fails": (CONTROL + "test_what_served_serves_on_when_its_successor_does_not_load",),
    "`config` of a load takes the place": (
        CONTROL + "test_config_and_files_of_a_client_take_the_place_of_the_repositorys",
    ),
    "They are written into a folder that only": (
        "deployments/replica/test_override_files.py::test_files_lie_in_a_folder_of_their_users",
        "deployments/replica/test_override_files.py::test_a_path_that_leaves_the_model_is_refused",
        CLUSTER + "test_a_model_that_waits_for_a_gpu_is_placed_when_a_node_brings_one",
        CONTROL + "test_refusals_have_tritons_texts",
    ),
    "Loading an ensemble loads the models": (
        CONTROL + "test_an_ensemble_brings_its_steps_and_takes_along_those_that_nobody_else_needs",
    ),
    "`unload_dependents` unloads those of them": (
        CONTROL + "test_an_ensemble_brings_its_steps_and_takes_along_those_that_nobody_else_needs",
    ),
    "An ensemble without one of its steps": (
        CONTROL + "test_an_ensemble_brings_its_steps_and_takes_along_those_that_nobody_else_needs",
    ),
    "Commands for one model are done one after the other": (
        CONTROL + "test_many_clients_at_once_end_in_the_state_of_the_last_command",
    ),
    "A command that reaches the controller is carried out": (
        "e2e/test_controller_steps.py::test_at_some_steps_of_a_models_life",
        CONTROL + "test_what_the_controller_was_told_happens_though_it_dies_on_the_way",
    ),
    "`--model-repository` may be given several times": (
        "repository_loader/test_repository.py::test_the_same_name_in_two_repositories_is_no_model",
    ),
    "What cannot be loaded is tried again once its": (
        "deployments/control/test_repository_watch.py::test_what_was_tried_in_vain_is_tried_later_and_later_unless_it_changes",
    ),
    "A model that serves already serves on": (
        "e2e/test_poll.py::test_a_model_serves_on_when_a_second_repository_gets_its_name",
    ),
    "A name that is in two repositories is UNAVAILABLE": (
        "repository_loader/test_repository.py::test_the_same_name_in_two_repositories_is_no_model",
        NAMESPACES + "test_both_are_served_and_an_ensemble_takes_its_steps_from_its_own_repository_first",
    ),
    "Load and unload are for all models of the name": (
        "deployments/control/test_model_commands.py::test_load_and_unload_of_a_name_are_for_all_that_have_it",
        SHARED_NAMES,
    ),
    "So do models that call others": (
        CALLS + "test_a_model_calls_the_one_of_its_own_repository_where_several_share_a_name",
    ),
    "A request for the name is refused with 400": (SHARED_NAMES,),
    "In explicit mode [`eagleray repository register PATH`]": (
        REPOSITORIES + "test_models_of_a_registered_repository_are_there_also_for_the_next_controller",
        REPOSITORIES + "test_repositories_are_registered_in_explicit_mode_only",
        "app/http/test_registering.py::test_the_command_sends_an_absolute_path_or_an_address",
    ),
    "`eagleray repository list` prints": (
        REPOSITORIES + "test_models_of_a_registered_repository_are_there_also_for_the_next_controller",
        "app/http/test_registering.py::test_the_command_lists_the_repositories",
    ),
    "What is loaded of a repository that is unregistered": (
        REPOSITORIES + "test_what_is_loaded_of_an_unregistered_repository_stays_loaded",
        REPOSITORIES + "test_a_registered_repository_that_vanishes_harms_no_model_of_others",
    ),
    "With `--model-control-mode poll` the repositories": (
        POLL + "test_models_follow_the_repository",
        POLL + "test_a_model_that_never_loaded_is_forgotten_when_it_is_removed",
    ),
    "A change is taken once the model's folder": (
        "deployments/control/test_repository_watch.py::test_a_model_that_is_being_copied_is_not_taken_before_it_is_quiet",
        POLL + "test_a_model_that_is_copied_slowly_is_never_loaded_half",
    ),
    "A repository that cannot be read changes nothing": (
        "deployments/control/test_repository_watch.py::"
        "test_a_folder_that_has_gone_is_a_change_and_a_repository_that_has_gone_is_none",
    ),
    "A page of another site in somebody's browser": (
        "app/http/test_api.py::test_a_page_of_another_site_cannot_load_a_model",
        "app/http/test_api.py::test_a_page_of_another_site_cannot_change_anything",
    ),
    # Versions and traffic
    "A request that names a version goes there": (
        TRAFFIC + "test_weights_hold_on_all_ingresses_when_the_change_is_answered",
    ),
    "One that names none goes to the highest": (
        SHARES + "test_without_weights_the_highest_ready_version_gets_everything",
        TRAFFIC + "test_weights_of_the_configuration_hold_until_a_command_and_after_it_is_cleared",
    ),
    "Weights need not add up": (SHARES + "test_weights_need_not_add_up_to_anything",),
    "A version that is not ready, or has no weight": (
        SHARES + "test_a_version_that_is_not_ready_or_has_no_weight_gets_nothing",
        SPLIT + "test_a_model_without_weights_or_copies_has_its_versions_own_target",
    ),
    "Weights of which no version exists": (SHARES + "test_weights_of_versions_that_are_gone_are_void",),
    "A change of weights by [`eagleray traffic`]": (
        TRAFFIC + "test_weights_hold_on_all_ingresses_when_the_change_is_answered",
        TRAFFIC + "test_the_command_shows_and_changes_traffic",
    ),
    "It needs a key that is good for `manage`": (
        "app/http/test_api_keys.py::test_every_route_wants_the_key_of_its_scope",
        TRAFFIC + "test_weights_outlive_the_controller",
    ),
    "HTTP, gRPC, gRPC streams and `generate` go by": (
        TRAFFIC + "test_weights_hold_on_all_ingresses_when_the_change_is_answered",
        TRAFFIC + "test_grpc_streams_and_generate_go_by_the_weights_too",
        TRAFFIC + "test_an_ensembles_step_of_version_minus_one_goes_by_the_weights",
    ),
    "Of any 500 requests each version": (
        "deployments/core/test_version_choice.py::test_each_share_is_kept_in_any_stretch_also_for_every_nth_request",
    ),
    "A sequence stays at its version": (
        SPLIT + "test_all_requests_of_a_sequence_go_to_one_version",
        TRAFFIC + "test_a_sequence_stays_at_its_version_while_the_weights_change",
        "deployments/core/test_version_choice.py::test_processes_agree_on_a_sequence_and_shares_of_sequences_are_kept",
        "deployments/core/test_version_choice.py::test_a_sequence_stays_until_it_ends_or_starts_anew_or_its_version_goes",
    ),
    "A version in `shadow` gets copies": (TRAFFIC + "test_a_shadow_gets_copies_and_nobody_hears_of_its_answers",),
    "A copy leaves after its request": (
        SPLIT + "test_a_copy_leaves_after_the_request_and_its_outcome_is_only_counted",
        SPLIT + "test_copies_are_bounded_by_number_and_by_bytes",
        TRAFFIC + "test_a_shadow_that_fails_fails_no_client",
    ),
    "`eagleray_shadow_requests_total` counts them": (
        TRAFFIC + "test_a_shadow_gets_copies_and_nobody_hears_of_its_answers",
    ),
    "Requests that name shared memory are not copied": (SPLIT + "test_what_names_shared_memory_is_not_copied",),
    "A canary gets a percentage that rises": (
        CANARY + "test_over_a_limit_it_is_rolled_back_at_once",
        SPLIT + "test_what_a_canary_got_is_measured_anew_in_each_step",
        TRAFFIC + "test_a_canary_that_fails_is_rolled_back_by_itself",
    ),
    "A step lasts for its interval": (CANARY + "test_it_advances_when_the_time_is_over_and_enough_was_answered",),
    "A canary goes on when the controller has died": (
        TRAFFIC + "test_a_good_canary_gets_everything_though_the_controller_dies_on_the_way",
    ),
    "Its history, of the last 64 events": (
        CANARY + "test_the_history_is_of_all_canaries_of_the_model_and_bounded",
        TRAFFIC + "test_the_command_shows_and_changes_traffic",
    ),
    # Configuration
    "Every field of a model's configuration": (
        "repository_loader/test_field_rules.py::test_every_field_of_the_message_has_a_row",
        "repository_loader/test_field_rules.py::test_a_field_without_effect_is_warned_of",
        "repository_loader/test_field_rules.py::test_a_field_that_cannot_be_had_is_refused",
    ),
    "The log of a server has the same findings": (
        "app/cli/test_validation.py::test_the_log_of_a_server_has_the_findings_of_validate",
    ),
    "`eagleray validate` refuses what loading would refuse": (
        "repository_loader/test_loadability.py::test_what_loading_would_refuse_is_refused_with_its_place",
    ),
    "`--load` also loads": (
        "app/cli/test_validation.py::test_load_finds_what_only_loading_can_tell",
        "deployments/replica/test_trial_load.py::test_time_is_bounded",
        "deployments/replica/test_trial_load.py::test_memory_is_bounded",
    ),
    "The backends of Triton's own tests are built in": (
        TESTING + "test_identity_answers_with_its_inputs_and_three_parameters",
        TESTING + "test_a_wrong_configuration_is_refused_with_tritons_text",
        TESTING + "test_repeat_sends_each_element_after_its_delay",
        TESTING + "test_square_sends_its_number_that_often_then_fails_then_sends_nothing",
        "e2e/test_sequences.py::test_interleaved_sequences_end_with_their_sums",
        SEQUENCE_MODELS + "test_what_tritons_test_of_implicit_state_tries",
        SEQUENCE_MODELS + "test_an_iterative_sequence_runs_until_its_model_releases_it",
    ),
    "`eagleray.memory_bytes` of a model on the CPU": (
        "deployments/control/test_group_deployment.py::test_memory_that_a_model_says_it_takes_is_reserved_by_ray",
    ),
    # Repositories that are no folders
    "addresses are read as Triton reads them": (
        f"{STORAGE}test_location.py::test_reads_tritons_forms",
        f"{STORAGE}test_credentials.py::test_longest_prefix_of_the_credential_file_counts",
        f"{MIRROR}test_archive_is_a_repository",
    ),
    "[The forms and the credentials]": (f"{MIRROR}test_models_of_a_store_load_like_those_of_a_folder",),
    "Every node fetches what its replicas load": (
        "e2e/test_storage.py::test_each_node_fetches_its_models_itself",
        "e2e/test_storage.py::test_so_it_is_with_other_stores",
        f"{MIRROR}test_other_node_refuses_what_was_not_promised",
    ),
    "Unchanged files are fetched once": (f"{MIRROR}test_unchanged_files_are_fetched_once",),
    "A model changes as a whole": (
        f"{MIRROR}test_changed_model_gets_a_folder_of_its_own_and_others_stay",
        f"{MIRROR}test_folder_that_is_used_is_not_evicted",
    ),
    "Stores are polled as folders are": ("e2e/test_storage.py::test_changes_of_a_polled_bucket_are_served",),
    "While a store is down": (
        f"{MIRROR}test_store_that_is_down_unloads_nothing",
        f"{MIRROR}test_store_that_has_lost_everything_unloads_nothing",
        f"{MIRROR}test_what_was_fetched_before_serves_on_when_the_disk_is_full",
        f"{MIRROR}test_what_was_fetched_before_serves_on_when_a_file_is_not_what_was_listed",
        "e2e/test_storage.py::test_replica_is_replaced_while_the_store_is_down",
    ),
    "The log says so": (f"{MIRROR}test_store_that_is_down_unloads_nothing",),
    "An archive with links": (
        f"{STORAGE}test_archive.py::test_refuses_what_could_harm_and_writes_nothing_outside",
        f"{MIRROR}test_archive_with_another_digest_is_refused",
    ),
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
    "A batch of an ONNX model on the CPU is divided": (
        ROW_SPLIT + "test_rows_run_in_parts_once_that_is_measured_as_quicker",
        ROW_SPLIT + "test_two_batches_at_a_time_have_a_core_each",
    ),
    "Only models with `max_batch_size`, whose batches": (
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
    "Ragged inputs share a batch": (
        "deployments/backends/test_onnxruntime.py::test_every_kind_of_batch_input",
        "deployments/backends/test_pytorch.py::test_every_kind_of_batch_input",
    ),
    # Response cache
    "With `--cache-config local,size=<bytes>`": (
        CACHED + "test_the_same_request_runs_once",
        CACHED + "test_a_request_that_differs_runs",
        "deployments/core/test_loader.py::test_responses_of_models_and_ensembles_are_kept_where_they_want_that",
        "e2e/test_response_cache.py::test_the_same_request_runs_once_whatever_protocol_brings_it",
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
        "e2e/test_model_control.py::test_a_model_that_is_loaded_anew_forgets_what_it_has_answered",
        "deployments/core/test_loader.py::test_a_model_answers_for_another_process_only_where_its_files_are_the_same",
        "deployments/core/test_loader.py::test_a_model_whose_files_change_while_it_loads_answers_for_no_other",
    ),
    "Hits and misses are in the statistics": (
        CACHED + "test_hits_and_misses_are_counted_as_triton_counts_them",
        "e2e/test_response_cache.py::test_the_same_request_runs_once_whatever_protocol_brings_it",
    ),
    # Sequences
    "`sequence_batching` works with ONNX": (
        "e2e/test_sequences.py::test_interleaved_sequences_end_with_their_sums",
        "e2e/test_sequences.py::test_a_request_without_a_start_is_refused_with_tritons_text",
        SEQUENCE_MODELS + "test_each_sequence_gets_its_own_state_back",
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
        SEQUENCES + "test_a_waiting_sequence_expires_as_a_whole_with_its_earliest_timeout",
    ),
    "To cancel a request that waits is to end": (
        SEQUENCES + "test_to_cancel_a_request_that_waits_is_to_end_its_sequence",
        SEQUENCES + "test_to_cancel_a_request_in_the_backlog_is_to_end_its_sequence",
        SEQUENCES + "test_a_sequence_of_which_all_is_cancelled_before_any_has_run_leaves_its_slot",
    ),
    "A sequence without requests for": (
        SEQUENCES + "test_an_idle_sequence_loses_its_slot",
        SEQUENCES + "test_of_several_sequences_each_is_idle_by_itself",
    ),
    "A request that fails leaves its sequence": (
        SEQUENCES + "test_a_request_that_fails_does_not_end_its_sequence",
        SEQUENCE_MODELS + "test_a_failed_request_leaves_the_state_as_it_was",
    ),
    "Implicit state begins with zeros": (
        SEQUENCE_MODELS + "test_a_state_may_begin_with_a_file",
        SEQUENCE_MODELS + "test_a_state_may_grow",
        SEQUENCE_MODELS + "test_a_state_is_not_sent_unless_it_is_an_output_that_was_asked_for",
    ),
    "With several replicas a sequence stays": (
        SEQUENCE_LANES + "test_interleaved_sequences_through_two_ingresses_and_two_replicas",
        SEVERAL + "test_sequences_stay_with_their_replica_whichever_ingress_they_come_through",
    ),
    "New replicas take new sequences": (SEQUENCE_LANES + "test_a_new_replica_takes_new_sequences_only",),
    "A client that changes its ingress when a replica was added": (
        SEQUENCE_LANES + "test_a_client_that_changes_its_ingress_when_a_replica_was_added_never_hears_a_wrong_sum",
    ),
    "A sequence that starts anew ends what any other replica holds": (
        SEQUENCE_LANES + "test_a_client_that_changes_its_ingress_when_a_replica_was_added_never_hears_a_wrong_sum",
        "deployments/schedulers/test_sequence.py::test_a_sequence_that_has_started_elsewhere_ends_here",
    ),
    "When the replica of a sequence dies or leaves": (
        SEQUENCE_LANES + "test_when_the_replica_dies_each_sequence_in_it_gets_one_error_and_may_start_anew",
    ),
    "The sequence may start anew": (
        SEVERAL + "test_sequences_of_a_replica_that_dies_fail_once_and_start_anew",
        SEQUENCE_LANES + "test_when_the_replica_dies_each_sequence_in_it_gets_one_error_and_may_start_anew",
    ),
    "Sequences of other replicas go on": (SEVERAL + "test_sequences_of_a_replica_that_dies_fail_once_and_start_anew",),
    "A model with `sequence_batching` is never embedded": (PLAN + "test_a_sequence_model_is_never_embedded",),
    "One that has had its last response, or an error, does not": (
        "deployments/core/test_iterative_sequences.py::test_a_request_that_has_ended_does_not_run_again",
        "deployments/core/test_iterative_sequences.py::test_a_request_that_is_rescheduled_for_ever_ends_with_its_model",
    ),
    "With `iterative_sequence` a request": (
        SEQUENCE_MODELS + "test_an_iterative_sequence_runs_until_its_model_releases_it",
    ),
    "`TRITONSERVER_DELAY_SCHEDULER` and": (
        SEQUENCES + "test_variables_hold_the_first_batch_back",
        "deployments/schedulers/test_dynamic.py::test_held_scheduler_starts_when_enough_requests_are_queued",
    ),
    "An ensemble whose steps all run in other processes": (
        COPIED + "test_no_request_waits_for_its_replica",
        COPIED + "test_requests_are_counted_once",
        COPIED + "test_a_reload_holds_in_every_ingress_when_it_is_answered",
        "repository_loader/test_copied_ensembles.py::test_an_ensemble_whose_steps_run_elsewhere_is_copied",
        "app/service/test_routing.py::test_a_copy_is_asked_only_while_it_is_one_of_what_the_directory_says",
    ),
    "That replica is for models that call": (COPIED + "test_a_model_reaches_its_replica",),
    "An ensemble that sets `eagleray.placement`": (
        "repository_loader/test_copied_ensembles.py::test_an_ensemble_with_something_of_its_own_is_not",
        "repository_loader/test_copied_ensembles.py::test_an_ensemble_with_a_bound_of_its_own_is_not",
    ),
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
    "A client that makes the object of its shared memory smaller": (
        "deployments/replica/test_guarded_mapping.py::test_the_process_goes_on_and_the_region_is_refused",
        "e2e/test_clients.py::test_shared_memory_that_shrinks_while_it_is_used_ends_no_process",
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
    "Each instance of a Python model has a process of its own": (
        PLAN + "test_divides_instances_into_replicas",
        PLAN + "test_packs_cpu_models_together",
    ),
    "A single instance that is alone in its replica": (PLAN + "test_divides_instances_into_replicas",),
    "One whose files name signal handlers, or whose `initialize` sets one": (
        "deployments/backends/test_python_loading.py::test_a_model_that_sets_signal_handlers_gets_a_process_of_its_own",
    ),
    "is three such processes behind one queue": (
        PROCESSES + "test_count_is_instances_behind_one_queue_which_run_at_the_same_time",
    ),
    "A process that dies, by a signal": (PROCESSES + "test_a_death_costs_its_own_batch_and_the_instance_comes_back",),
    "It is started again at once, and after": (
        PROCESSES + "test_a_process_that_dies_again_and_again_is_started_less_and_less_often",
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
    "When a replica ends in order, `finalize`": (
        PROCESSES + "test_closing_calls_finalize_and_leaves_no_process",
        PROCESSES + "test_the_death_of_the_replica_ends_its_processes",
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
    "A replica to which no lane can be opened": (
        LINK + "test_a_lane_that_cannot_be_opened_is_logged_with_its_reason",
        LINK + "test_a_refused_lane_is_logged_with_the_replicas_words_once",
    ),
    "Where a replica's Unix socket cannot be reached": (
        "deployments/lane/test_link.py::test_tcp_is_taken_where_the_unix_socket_cannot_be_reached",
    ),
    # Starting
    "Where Ray runs its workers at a niceness above 0": (
        "app/ingress/test_niceness.py::test_how_to_start_ray_is_said_where_workers_come_last",
        CLUSTER + "test_application_is_healthy_again_after_a_node_has_died",
    ),
    "Several Eagleray may share `/tmp`": (
        "deployments/lane/test_owned_file.py::test_process_with_numbers_of_its_own_leaves_the_socket_alone",
        "deployments/lane/test_owned_file.py::test_what_a_dead_process_left_is_removed",
        "e2e/test_shared_folders.py::test_servers_that_cannot_see_each_others_processes_leave_each_others_files",
    ),
    "variable that is no setting is named": (
        "app/cli/test_triton_flags.py::test_mistyped_variable_is_named_with_the_closest_right_one",
        CLUSTER + "test_log_names_a_mistyped_variable",
    ),
    "A flag of `tritonserver` that means nothing": (
        "app/cli/test_triton_flags.py::test_every_flag_of_tritonserver_is_taken",
    ),
    "Two listeners on one port": (
        COMMANDS + "test_wrong_usage_is_named_and_ends_with_2",
        "app/cli/test_log_file.py::test_a_log_file_that_cannot_be_opened_is_refused",
    ),
    "What a Python model prints": (NAMESAKES + "test_what_a_model_prints_and_logs_appears_with_its_name",),
    # Log
    "Each switch of Triton's log settings": (LOG + "test_each_switch_holds_by_itself",),
    "Log settings that a client changes hold in all processes": (
        NAMESAKES + "test_log_settings_hold_for_all_processes_and_the_log_file",
        "deployments/replica/test_node_log.py::test_what_an_ingress_sets_holds_in_other_processes_of_the_node",
        "deployments/replica/test_node_log.py::test_a_process_that_starts_later_has_the_settings_of_the_node",
        PROCESSES + "test_log_settings_hold_for_a_model_in_a_process_of_its_own",
    ),
    "Our lines have Triton's form": (LOG + "test_lines_are_tritons", LOG + "test_times_are_utc"),
    "Messages about traced requests": (
        "deployments/replica/test_traced_models.py"
        "::test_what_a_model_logs_prints_and_raises_names_the_trace_in_tritons_forms",
        "app/service/test_refusal_log.py::test_the_line_of_a_traced_request_names_its_trace",
    ),
    "With `--log-format json`": (LOG + "test_json_is_an_object_per_line_of_serve_too",),
    "`--log-file` is one file on each node": (LOG + "test_the_log_file_has_whole_lines_of_all_processes",),
    "It grows until somebody": (
        LOG + "test_a_log_file_that_was_moved_is_made_anew_and_one_that_cannot_be_written_harms_nobody",
    ),
    "A client cannot change it": (NAMESAKES + "test_log_settings_hold_for_all_processes_and_the_log_file",),
    "What cannot be written to it": (
        LOG + "test_a_log_file_that_was_moved_is_made_anew_and_one_that_cannot_be_written_harms_nobody",
    ),
    "Each file in the log folder of the Ray": (
        "e2e/test_log_rotation.py::test_what_models_write_is_put_aside_and_the_oldest_removed",
        "e2e/test_log_rotation.py::test_a_server_says_when_its_user_does_not",
    ),
    "A cluster of your own goes by": (
        "e2e/test_log_rotation.py::test_what_models_write_is_put_aside_and_the_oldest_removed",
    ),
    "What clients are refused, over HTTP or gRPC": (
        REFUSALS + "test_a_kind_has_one_line_a_second_and_what_is_left_out_is_counted",
        REFUSALS + "test_what_is_refused_by_http_is_one_escaped_line_of_each_kind",
        REFUSALS + "test_what_is_refused_by_grpc_is_in_the_log",
    ),
    "A message has 512 characters": (REFUSALS + "test_a_line_is_short_and_names_model_and_request",),
    "Faults of the server are warnings": (
        REFUSALS + "test_faults_of_the_server_are_warnings_and_others_information",
        REFUSALS + "test_what_is_refused_by_grpc_is_in_the_log",
    ),
    "With `--log-slow-requests-ms`": (
        SLOW + "test_a_request_over_the_threshold_is_told_with_its_stages",
        SLOW + "test_a_slow_request_of_a_decoupled_model_is_told",
        SLOW + "test_nothing_is_told_without_a_threshold",
        NAMESAKES + "test_log_settings_hold_for_all_processes_and_the_log_file",
    ),
    "A second has ten of these lines": (SLOW + "test_a_second_has_ten_lines_and_the_next_counts_the_others",),
    "`POST /v2/models/{model}/logging` with": (
        LOG + "test_a_model_may_have_levels_of_its_own",
        "app/service/test_log_settings.py::test_levels_of_a_model_lie_over_the_servers",
        NAMESAKES + "test_log_settings_hold_for_all_processes_and_the_log_file",
    ),
    "Nothing in a message can end a line": (LOG + "test_nothing_that_a_record_holds_ends_a_line_or_steers_a_terminal",),
    "What a model prints stands in the files": (
        "app/cli/test_console_pipe.py::test_a_line_commands_no_terminal_and_keeps_its_colours",
        "app/cli/test_model_logs.py::test_lines_command_no_terminal",
    ),
    "Of a message, and of a traceback, a line has": (LOG + "test_no_text_makes_a_line_without_end",),
    "Of the tracebacks that one place": (LOG + "test_tracebacks_of_one_place_cannot_fill_the_log",),
    "A traceback follows its line": (LOG + "test_nothing_that_a_record_holds_ends_a_line_or_steers_a_terminal",),
    "A model never waits for that": (
        "app/cli/test_console_pipe.py::"
        "test_a_console_that_does_not_read_keeps_nobody_waiting_and_what_was_dropped_is_counted",
    ),
    "All lines are in Ray's log folder": (NAMESAKES + "test_what_a_model_prints_and_logs_appears_with_its_name",),
    "On a terminal, a table shows the models": (
        "app/cli/test_progress.py::test_the_table_is_never_taller_than_the_terminal",
        "app/cli/test_progress.py::test_what_failed_is_shown_before_what_is_ready",
    ),
    "The last line of the start": ("app/cli/test_progress.py::test_summary_counts_what_failed",),
    "A start that fails ends with exit code 1": (COMMANDS + "test_ray_that_does_not_start_is_one_sentence",),
    "Ctrl-C while models load": (COMMANDS + "test_sigint_during_the_start_stops_cleanly",),
    "`eagleray serve` starts in any folder": (NAMESAKES + "test_files_named_as_our_packages_hide_nothing",),
    "In a folder that holds another Eagleray": (
        NAMESAKES + "test_a_folder_with_another_eagleray_is_refused_before_ray_starts",
    ),
    "`serve deploy` fails for it": (
        "app/test_other_eagleray.py::test_a_cluster_that_was_started_beside_another_eagleray_is_refused",
        "app/test_other_eagleray.py::test_a_cluster_that_was_started_in_a_copy_of_eagleray_is_refused_when_another_is_installed",
    ),
    "A model finds its own modules": (
        "deployments/backends/test_python_model_module.py::test_classes_pickled_by_their_plain_module_name_load_in_initialize",
    ),
    "The local Ray is closed by a token": (
        "app/cli/test_ray_token.py::test_token_lies_in_a_folder_of_ours_that_only_its_user_reads",
    ),
    "What the user has chosen instead stands": (
        "app/cli/test_ray_token.py::test_choice_of_the_user_stands",
        "app/cli/test_ray_token.py::test_token_of_the_users_own_clusters_is_used_where_there_is_one",
    ),
    "Nothing is written to `~/.ray`": ("e2e/test_readme.py::test_all_commands_work_in_their_order_in_an_empty_home",),
    "The URL of the dashboard": (
        "app/cli/test_dashboard_login.py::test_url_sets_the_dashboards_cookie_and_goes_there",
        ACCESS + "test_the_printed_url_shows_the_models_in_rays_dashboard",
    ),
    "A dashboard that does not start in time": (COMMANDS + "test_a_dashboard_that_does_not_start_in_time_is_left_out",),
    # Access
    "requests on every port need a key": (
        KEYS + "test_every_route_wants_the_key_of_its_scope",
        "app/grpc/test_api_keys.py::test_every_method_wants_the_key_of_its_scope",
        ACCESS + "test_clients_need_a_key_that_is_good_for_what_they_do",
    ),
    "Health needs none": (KEYS + "test_every_route_wants_the_key_of_its_scope",),
    "A request without a known key": (
        KEYS + "test_a_request_without_a_key_is_refused_before_its_body_is_sent",
        "app/edge/test_api_keys.py::test_whoever_is_not_known_is_unauthenticated",
        "app/edge/test_api_keys.py::test_a_new_key_is_good_for_its_scopes_and_is_not_in_its_line",
        "app/grpc/test_api_keys.py::test_every_method_wants_the_key_of_its_scope",
    ),
    "`eagleray new-api-key": (ACCESS + "test_clients_need_a_key_that_is_good_for_what_they_do",),
    "Keys are those in the file": (
        ACCESS + "test_a_key_is_revoked_while_the_server_runs",
        KEYS + "test_a_head_that_was_let_in_is_not_read_again_until_the_keys_change",
        "app/grpc/test_api_keys.py::test_a_revoked_key_opens_nothing_more_and_ends_its_streams",
    ),
    "A file that is gone or malformed": (
        "app/edge/test_api_keys.py::test_keys_come_and_go_with_their_file",
        "app/edge/test_api_keys.py::test_a_file_that_is_being_written_costs_nobody_his_key",
    ),
    "`--allow-admin-api=false` refuses": (
        KEYS + "test_a_port_without_the_admin_api_refuses_what_manages_and_nothing_else",
        "app/grpc/test_api_keys.py::test_a_port_without_the_admin_api_refuses_what_manages",
        ACCESS + "test_the_admin_api_has_a_port_of_its_own",
    ),
    "listen on loopback only": (ACCESS + "test_the_documented_ports_are_those_that_listen",),
    # Commands
    "is [a page](console.md) of at most 150 KB": (
        CONSOLE_API + "test_the_page_and_all_its_files_are_small_and_may_load_nothing_from_elsewhere",
        CONSOLE_API + "test_without_a_console_its_paths_are_none",
    ),
    "The page and its files need no key": ("app/http/test_api_keys.py::test_every_route_wants_the_key_of_its_scope",),
    "What they ask for needs one for `read`": (
        "app/http/test_api_keys.py::test_every_route_wants_the_key_of_its_scope",
        CONSOLE + "test_models_are_found_by_keyboard_and_a_name_is_only_a_name",
    ),
    "Names of models, reasons and log lines are text": (
        CONSOLE + "test_models_are_found_by_keyboard_and_a_name_is_only_a_name",
        CONSOLE + "test_a_failed_model_shows_the_line_that_failed",
    ),
    "Its state is made at most once a second": (
        CONSOLE_API + "test_one_document_serves_all_who_look_within_a_second",
        CONSOLE_API + "test_the_state_has_every_version_with_what_it_counted",
        CONSOLE_API + "test_the_state_is_of_all_nodes",
    ),
    "What it shows as `curl` and as Python": (
        CONSOLE + "test_a_request_of_an_image_is_answered_and_can_be_sent_elsewhere",
        CONSOLE + "test_a_text_comes_back_whole_wherever_it_is_sent_from",
    ),
    "`eagleray top` shows the console's table": (
        "app/cli/test_top.py::test_the_table_is_no_wider_and_no_higher_than_the_terminal_and_keeps_what_matters",
        "app/cli/test_top.py::test_a_name_cannot_command_the_terminal",
        CONSOLE + "test_the_same_table_is_shown_in_a_terminal",
    ),
    "ask the server at `--url`": (
        ACCESS + "test_status_shows_every_model",
        "app/cli/test_remote_server.py::test_headers_of_a_restricted_api_are_sent_with_every_request",
    ),
    "It asks over one connection": (
        "app/cli/test_remote_server.py::test_what_is_asked_again_and_again_goes_over_one_connection",
        "app/cli/test_remote_server.py::test_a_connection_that_the_server_has_closed_is_made_anew",
    ),
    "It names a GPU by its number": (
        "app/console/test_page.py::test_a_gpu_has_one_name_where_it_is_busy_and_where_it_is_held",
        "e2e/test_gpus.py::test_the_console_is_told_which_cards_each_replica_has",
    ),
    "What goes wrong is one sentence": (ACCESS + "test_commands_say_what_went_wrong_in_one_line",),
    "`eagleray infer` takes values": (
        ACCESS + "test_infer_takes_values_and_files_and_prints_what_comes_back",
        "app/cli/test_tensors.py::test_what_may_be_written",
        "app/cli/test_tensors.py::test_files",
        "app/cli/test_tensors.py::test_images_get_the_layout_and_size_of_the_input",
    ),
    "`eagleray logs MODEL`": (
        "app/cli/test_model_logs.py::test_the_lines_of_a_models_replicas",
        CLUSTER + "test_logs_are_found_where_serve_writes_them",
        "app/cli/test_model_logs.py::test_of_a_packed_model_the_lines_that_name_it",
        "e2e/test_traffic.py::test_logs_are_printed_by_the_server_that_is_asked",
    ),
    "the newest 12 MiB of them": (
        "deployments/log/test_model_log.py::test_only_the_end_of_a_long_file_is_read",
        "deployments/log/test_model_log.py::"
        "test_of_many_long_files_only_the_newest_are_read_and_no_more_lines_kept_than_are_wanted",
    ),
    "`eagleray doctor` names": (
        "app/cli/test_doctor.py::test_a_card_without_a_driver_is_named",
        "app/cli/test_doctor.py::test_small_shared_memory_is_named",
        "app/cli/test_doctor.py::test_two_onnxruntimes_are_named",
        "app/cli/test_doctor.py::test_a_ray_of_this_user_that_wants_no_token_is_named",
        "app/cli/test_doctor.py::test_a_port_that_is_taken_is_named",
        "app/cli/test_doctor.py::test_nodes_that_differ_are_named_by_package",
        CLUSTER + "test_doctor_compares_the_nodes",
        "app/cli/test_doctor.py::test_the_command_says_what_it_has_found_and_fails_for_errors",
        "e2e/test_traffic.py::test_doctor_looks_on_the_nodes_of_the_server_that_is_asked",
    ),
    "A server tells that to those who manage.": (
        "e2e/test_access.py::test_doctor_tells_those_who_manage_where_the_admin_api_is",
    ),
    "has its flags under headings": ("app/cli/test_option_groups.py::test_flags_stand_under_headings",),
    # Several ingresses
    "`--ingresses-per-node` ingresses share the ports": (SEVERAL + "test_both_are_ready_when_the_server_says_so",),
    "Without the flag there is one for every four cores": (
        "app/ingress/test_count.py::test_one_for_every_four_cores_of_the_average_node",
    ),
    "With port 0 the ingresses of a node share": (
        SEVERAL + "test_both_are_ready_when_the_server_says_so",
        SEVERAL + "test_when_one_is_killed_the_other_serves_on_and_a_new_one_joins",
    ),
    "System shared memory that a client registers": (
        SEVERAL + "test_shared_memory_registered_at_one_is_known_to_both",
        "deployments/replica/test_shared_memory.py::test_every_process_of_the_node_has_a_change_at_once",
    ),
    "refuses a cluster in which Eagleray runs already": (
        CLUSTER + "test_serve_joins_a_running_cluster_and_leaves_it_running",
    ),
    "CUDA shared memory that a client registers": (
        "e2e/test_gpus.py::test_tensors_may_lie_in_the_memory_of_a_gpu",
        "deployments/replica/test_device_regions.py::test_every_ingress_opens_a_region_and_no_replica_does",
    ),
    "What a request names stays open until it is answered": (
        "deployments/replica/test_device_regions.py::test_a_place_that_a_request_has_stays_when_the_region_is_unregistered",
    ),
    "A node without a GPU says so": ("app/http/test_api.py::test_cuda_shared_memory_needs_a_gpu",),
    "Log and trace settings that a client changes": (SEVERAL + "test_settings_changed_at_one_hold_at_both",),
    "A sampled request's [trace]": (
        SEVERAL + "test_traces_of_both_are_in_one_file",
        "app/trace/test_trace_file.py::test_processes_that_write_at_the_same_time_leave_one_array",
    ),
    "They stay as long as an ingress lives": (
        SEVERAL + "test_settings_outlive_the_controller",
        "app/ingress/test_directory_follower.py::test_new_controller_is_told_what_clients_have_set",
    ),
    "When an ingress dies, its connections break": (
        SEVERAL + "test_when_one_is_killed_the_other_serves_on_and_a_new_one_joins",
    ),
    "The one that replaces it listens when every model": (
        SEVERAL + "test_when_one_is_killed_the_other_serves_on_and_a_new_one_joins",
    ),
    "`--http-unix-socket` is one file": (
        "app/http/test_listening.py::test_takes_a_path_over_and_leaves_it_to_who_has_it",
    ),
    # Statistics and metrics
    "The metrics port tells what was counted on its node": (
        STATISTICS + "test_replicas_of_one_model_are_counted_together",
        "deployments/replica/test_node_counters.py::test_everyone_sees_everyones_counts_at_once",
    ),
    "Scrape every node once": (
        "deployments/replica/test_node_counters.py::test_one_process_speaks_for_the_node_until_it_ends",
    ),
    "The Serve pages of Ray's dashboard": (
        STATISTICS + "test_rays_metrics_show_the_models",
        "e2e/test_access.py::test_the_panels_of_rays_serve_pages_show_the_models",
        "deployments/replica/test_ray_metrics.py::test_a_sample_of_latencies_keeps_their_proportions",
        "docs/test_metrics_page.py::test_rays_serve_dashboards_ask_for_what_rays_metrics_are_told",
    ),
    "A Prometheus job on Ray's service-discovery file": (
        "docs/test_metrics_page.py::test_the_documented_job_scrapes_each_node_of_rays_file_once",
    ),
    "lists every metric, with its labels and meaning": (
        STATISTICS + "test_the_page_of_metrics_lists_what_a_server_exports",
        "docs/test_metrics_page.py::test_the_page_lists_every_metric_with_its_type_and_labels",
    ),
    "What a model's instances do on a GPU": (
        "app/metrics/test_triton_metrics.py::test_what_instances_do_is_told_by_gpu_and_what_surrounds_them_is_not",
        "e2e/test_gpus.py::test_metrics_of_what_runs_on_a_gpu_name_it",
    ),
    "a model's metrics carry its own name": (
        "app/metrics/test_triton_metrics.py::test_models_of_namespaces_have_their_names_and_the_namespaces",
        "e2e/test_repositories.py::test_metrics_have_the_name_of_a_model_and_its_namespace",
    ),
    "Those who scrape an ingress while": ("app/metrics/test_scrape.py::test_many_who_scrape_at_once_cost_two_scrapes",),
    "A scrape that tells of 300 models": (
        "app/metrics/test_scrape.py::test_a_scrape_of_300_models_is_quick_and_holds_no_loop",
        "app/metrics/test_scrape.py::test_what_was_counted_since_the_last_scrape_is_in_the_next",
    ),
    "Every node reports a version that should serve and cannot": (
        OWN_METRICS + "test_a_version_is_down_that_cannot_serve_and_that_nobody_has_unloaded",
        OWN_METRICS + "test_a_model_without_versions_is_down_as_the_index_shows_it",
    ),
    "It also reports of each version the largest batch": (
        OWN_METRICS + "test_a_versions_limits_steps_and_share_of_the_traffic_are_told",
    ),
    "[Alerts](alerts.md) for Prometheus stand": (
        ALERTS + "test_alerts_fire_when_they_should_and_not_else",
        ALERTS + "test_every_alert_is_seen_to_fire_by_a_test",
        ALERTS + "test_the_page_says_what_to_do_about_each_alert",
    ),
    "A p99 is compared with its baseline": (ALERTS + "test_alerts_fire_when_they_should_and_not_else",),
    "Every panel of the [dashboards](dashboards.md)": (
        "e2e/test_dashboards.py::test_every_panel_shows_data_while_the_examples_serve",
        "e2e/test_dashboards.py::test_panels_of_what_is_not_here_show_data_of_samples_that_are_made_up",
        "deploy/test_grafana.py::test_its_file_is_current",
    ),
    "Summaries (`--metrics-config summary_latencies=true`)": (
        METRICS + "test_summaries_tell_the_quantiles_of_the_last_minute",
        METRICS + "test_summaries_of_processes_add_up",
    ),
    "Latencies are counted as clients see them": (
        STATISTICS + "test_metrics_tell_what_clients_got",
        "deployments/lane/test_request_meter.py::test_each_request_is_counted_once_by_what_came_of_it",
        OWN_METRICS + "test_clients_latencies_are_counted_by_protocol_from_first_byte_to_last",
        OWN_METRICS + "test_answers_are_counted_by_what_clients_got",
    ),
    "An error of a request that no model had counts": (
        STATISTICS + "test_each_error_is_counted_once_with_a_model_only_if_one_had_the_request",
        OWN_METRICS + "test_errors_of_requests_that_no_model_had_are_counted_without_one",
    ),
    "The metrics also show what is under way to a model": (
        OWN_METRICS + "test_what_is_under_way_is_what_has_not_ended_and_dies_with_its_process",
        OWN_METRICS + "test_batch_sizes_are_a_histogram",
        OWN_METRICS + "test_states_are_told_by_the_node_and_by_the_directory",
        "deployments/replica/test_state_sampler.py::test_a_busy_model_tells_what_runs_and_what_waits",
        "deployments/schedulers/test_dynamic.py::test_each_batch_is_counted_by_why_it_left",
    ),
    "One ingress of each node samples processors, memory and GPUs": (
        STATISTICS + "test_cpu_metrics_are_true",
        "app/metrics/test_node_sampler.py::test_one_ingress_of_a_node_samples_and_another_goes_on",
    ),
    "A counter never falls": (STATISTICS + "test_counters_never_fall_and_miss_nothing_when_a_replica_is_killed",),
    "What a replica has counted stays": (
        "deployments/replica/test_node_counters.py::test_what_a_killed_process_counted_stays_to_the_last_one",
    ),
    "A request that fails in the ingress counts": (
        LANE + "test_requests_under_way_are_bounded",
        "deployments/lane/test_full_queue.py::test_a_request_is_refused_when_every_queue_is_full",
    ),
    "What a client has given up counts as CANCELED": (
        "behaviours/test_behaviours.py::test_every_request_is_counted_once",
    ),
    "A gRPC deadline that passes gives a request up": (
        "e2e/test_statistics.py::test_a_model_that_ends_after_its_clients_deadline_has_succeeded_though_its_client_gave_up",
    ),
    "What the full queue of a model in the ingress itself": (
        "deployments/core/test_loader.py::test_queues_are_bounded_unless_the_model_has_a_policy_for_them",
        "deployments/schedulers/test_dynamic.py::test_a_request_that_another_replica_may_take_is_not_counted_as_rejected_here",
        "behaviours/test_behaviours.py::test_behaviour",
        "behaviours/test_behaviours.py::test_every_request_is_counted_once",
    ),
    "Each request that a model version has taken is counted once": (
        "behaviours/test_behaviours.py::test_every_request_is_counted_once",
    ),
    "`/v2/models/stats` sums over all nodes": (
        STATISTICS + "test_counters_never_fall_and_miss_nothing_when_a_replica_is_killed",
    ),
    # Applications in Serve
    "Each group of models is a Serve application": (
        CLUSTER + "test_isolated_models_are_applications_with_deployments_by_version_and_packed_ones_share_one",
        CLUSTER + "test_what_eagleray_deployed_it_ends_and_nothing_else",
    ),
    "A controller that died and was replaced ends none": (
        CLUSTER + "test_what_eagleray_deployed_it_ends_and_nothing_else",
    ),
    "An application of somebody else's": (CLUSTER + "test_what_eagleray_deployed_it_ends_and_nothing_else",),
    "A model whose application would need its name": (CLUSTER + "test_name_that_becomes_free_is_taken",),
    "A model that changes in place": (
        "deployments/replica/test_model_host.py::test_reload_in_place_refuses_no_request",
    ),
    # Stopping
    "The models of a replica finish and are freed": (
        "deployments/replica/test_model_host.py::test_models_that_take_long_to_finalise_do_so_together",
        "deployments/core/test_loader.py::test_close_does_not_wait_for_an_instance_that_is_never_freed",
        "deployments/core/test_instance_pool.py::test_instances_that_do_not_come_back_have_one_deadline_together",
    ),
    "SIGINT and SIGTERM": (
        COMMANDS + "test_control_c_lets_requests_under_way_be_answered_and_stops",
        COMMANDS + "test_a_stop_is_told_to_load_balancers_first_and_loses_no_answer_whatever_comes",
    ),
    "For `--drain-delay-s`": (
        COMMANDS + "test_a_stop_is_told_to_load_balancers_first_and_loses_no_answer_whatever_comes",
    ),
    "Then nothing new is accepted": (
        "app/grpc/test_draining.py::test_an_answer_reaches_a_client_that_still_talks",
        "app/grpc/test_draining.py::test_no_request_is_lost_to_the_age_of_connections",
        COMMANDS + "test_a_stop_is_told_to_load_balancers_first_and_loses_no_answer_whatever_comes",
        BACK_PRESSURE + "test_a_slow_reader_gets_its_whole_answer_when_the_server_stops",
        BACK_PRESSURE + "test_a_body_that_is_arriving_is_answered_before_the_end",
        "app/ingress/test_cluster_control.py::test_who_waits_for_a_load_hears_that_the_server_stops_and_so_does_who_comes_later",
    ),
    "A third signal": (COMMANDS + "test_a_third_signal_kills_everything_at_once",),
    # Python models
    "A configuration is completed (`auto_complete_config`)": (
        "e2e/test_storage.py::test_a_configuration_is_completed_on_a_node_that_the_model_may_run_on",
        "deployments/control/test_node_completion.py::test_a_node_completes_with_its_own_files_and_variables",
        "deployments/control/test_node_completion.py::test_it_may_run_where_its_configuration_lets_it",
        "deployments/control/test_node_completion.py::test_without_a_node_that_it_may_run_on_it_is_asked_here",
    ),
    "A Python-based backend is `<backend>/model.py`": (
        BASED + "test_the_backends_code_is_the_models",
        BASED + "test_a_model_may_bring_its_backend",
        BASED + "test_a_backends_name_never_leaves_the_directory",
        "deployments/backends/test_python_model_module.py::test_a_python_based_backend_finds_what_stands_beside_it",
    ),
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
    "With `--trace-config mode=opentelemetry` a request": (
        TRACING + "test_an_ensemble_over_two_nodes_is_one_trace",
        "app/trace/test_span_export.py::test_a_sampled_parent_is_always_traced",
    ),
    "A collector that does not answer": (
        "app/trace/test_span_export.py::test_a_collector_that_does_not_answer_holds_up_no_request",
    ),
    "Where spans are exported, `get_context()`": (
        TRACING + "test_a_models_call_of_a_model_on_another_node_is_its_child",
        TRACED_MODELS + "test_what_a_model_logs_has_the_ids_of_the_trace",
    ),
    "Where such a request is traced": (
        TRACED_MODELS + "test_a_call_that_is_given_the_trace_is_a_child_of_it",
        TRACED_MODELS + "test_a_call_over_a_lane_is_a_child_too",
    ),
    "What goes wrong with a call": (CALLS + "test_errors_are_responses_with_tritons_texts",),
    "The caller may write to the outputs": (
        "deployments/replica/test_model_calls.py::test_a_model_may_write_to_what_it_is_answered",
    ),
    "What a client does to its shared memory while it waits": (
        "deployments/schedulers/test_cached.py::test_what_a_client_changes_in_its_shared_memory_is_no_answer_to_others",
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
    "When all requests that a model runs": (CALLS + "test_a_cancelled_request_ends_the_calls_that_are_made_for_it",),
    "A call on the thread of an event loop": (CALLS + "test_a_model_that_hides_its_calls_leaves_the_loops_thread",),
    "A call of a model that has no replica at the moment": (
        "deployments/replica/test_far_model_calls.py::test_a_call_wakes_a_model_without_a_replica_and_waits_for_it",
        "deployments/replica/test_far_model_calls.py::test_a_call_of_a_model_whose_last_replica_died_waits_for_the_next",
    ),
    "`is_model_ready` says no from the moment on": (
        "deployments/replica/test_far_model_calls.py::test_a_model_that_was_unloaded_is_not_ready_though_it_is_here_for_a_moment",
    ),
    "A model loads and unloads others": (
        BLS + "test_a_model_loads_and_unloads_others",
        "deployments/control/test_model_commands.py::test_models_are_loaded_in_explicit_mode_only",
    ),
    "A model with an `is_ready` is asked every second": (
        "deployments/replica/test_readiness.py::test_what_a_model_says_is_known_and_it_serves_on",
        "deployments/replica/test_readiness.py::test_a_model_is_ready_when_all_its_instances_say_so",
        "deployments/replica/test_readiness.py::test_a_model_that_does_not_answer_is_not_ready_and_holds_nobody_up",
        "app/http/test_api.py::test_a_model_that_says_it_is_not_ready_is_not_and_is_served",
    ),
    "Metrics of models' own": (
        CUSTOM_METRICS + "test_processes_of_a_node_add_up_and_a_death_takes_its_gauges_alone",
        CUSTOM_METRICS + "test_a_gauge_is_shown_for_as_long_as_a_model_has_it",
        BLS + "test_a_model_calls_models_of_other_processes",
    ),
    "A gauge is what was last set": (
        CUSTOM_METRICS + "test_processes_of_a_node_add_up_and_a_death_takes_its_gauges_alone",
        CUSTOM_METRICS + "test_a_gauge_is_shown_for_as_long_as_a_model_has_it",
    ),
    "Metrics that Prometheus could not read": (
        CUSTOM_METRICS + "test_what_prometheus_could_not_read_is_refused",
        CUSTOM_METRICS + "test_the_number_of_metrics_is_bounded",
        CUSTOM_METRICS + "test_names_of_the_servers_own_metrics_are_left_to_it",
    ),
}
