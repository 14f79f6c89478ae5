"""Limits, HTTP, and what else clients meet first."""

from tests.docs.behaviour.modules import (
    ACCESS,
    ANSWERS,
    BACK_PRESSURE,
    CLUSTER,
    CONSOLE,
    CONSOLE_API,
    FAULTS,
    HANDLE_CALLS,
    HOSTILE,
    HTTP,
    INDEX,
    KEYS,
    LANE_BOUNDS,
    STARTING,
    TIMES,
)

TESTS: dict[str, tuple[str, ...]] = {
    # The page itself
    "Each sentence here is one that a test checks": ("docs/test_behaviour_page.py::test_every_sentence_has_a_test",),
    # Limits
    "| request body |": (
        HOSTILE,
        "e2e/shared/test_bad_input.py::test_body_over_the_limit_is_refused_and_the_next_connection_serves",
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
    "| answers on one `generate_stream`, on one gRPC stream": (
        "app/http/test_generate_exchange.py::test_a_client_that_takes_nothing_or_very_little_is_given_up",
        "app/http/test_generate_exchange.py::test_too_much_behind_a_large_response_ends_the_stream",
        "app/grpc/test_stream_infer.py::test_more_responses_at_once_than_four_times_what_may_wait_end_a_stream",
        "app/grpc/test_stream_infer.py::test_a_client_that_stops_reading_loses_its_stream_with_the_next_response",
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
        "app/http/test_few_descriptors.py::"
        "test_clients_that_ask_nothing_more_give_way_before_the_last_descriptor_is_taken",
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
    "| requests of one gRPC stream that are not answered": (
        "app/grpc/test_stream_infer.py::"
        "test_small_messages_beyond_what_may_be_under_way_wait_and_are_answered_in_order",
        "app/grpc/test_stream_infer.py::"
        "test_reads_no_further_while_too_much_waits_for_the_answer_to_an_earlier_request",
        "app/grpc/test_stream_infer.py::test_errors_that_wait_for_the_answer_to_an_earlier_request_count_as_under_way",
        "app/grpc/test_unpacking.py::test_what_waits_behind_it_is_taken_as_those_before_are_answered",
    ),
    "| requests under way to one replica |": (
        LANE_BOUNDS + "test_requests_under_way_are_bounded",
        LANE_BOUNDS + "test_bytes_under_way_are_bounded",
        LANE_BOUNDS + "test_a_request_larger_than_what_may_be_under_way_goes_beside_small_ones_only",
        LANE_BOUNDS + "test_small_requests_are_taken_beside_as_many_bytes_as_may_be_under_way",
        LANE_BOUNDS + "test_a_request_larger_than_any_replica_takes_is_wrong",
        "deployments/lane/test_lane_share.py::test_a_model_leaves_a_quarter_of_its_replica_to_the_others",
        "deployments/lane/test_lane_share.py::test_a_model_that_has_a_replica_alone_takes_all_of_it",
        "deployments/lane/test_lane_share.py::test_a_share_is_kept_but_for_a_sixteenth_of_what_may_be_under_way",
    ),
    "| queue of a model, in each of its replicas": (
        "deployments/schedulers/test_queue_bound.py::test_waits_are_bounded_under_overload_and_what_does_not_fit_is_refused_at_once",
        "deployments/schedulers/test_queue_bound.py::test_many_requests_at_once_are_all_taken",
        "deployments/schedulers/test_queue_bound.py::test_a_slow_model_keeps_few_waiting",
        "deployments/schedulers/test_queue_bound.py::test_a_load_that_fits_is_taken_where_batches_take_seconds",
        "deployments/schedulers/test_queue_bound.py::test_of_a_model_with_long_batches_no_more_waits_than_it_answers_in_one_and_a_half",
        "deployments/schedulers/test_queue_bound.py::test_a_model_whose_batches_take_longer_and_longer_does_not_have_the_more_waiting",
        "deployments/schedulers/test_queue_bound.py::test_a_model_that_comes_to_a_standstill_keeps_few_waiting",
    ),
    "| queue of a model with a `default_queue_policy` |": (
        "deployments/core/test_loader.py::test_queues_are_bounded_unless_the_model_has_a_policy_for_them",
        "deployments/schedulers/test_dynamic.py::test_queue_size_is_per_level_and_a_refused_request_is_counted_as_rejected",
    ),
    "| time that one batch may run": (
        "deployments/core/test_instance_pool.py::test_batch_that_never_ends_is_answered_and_its_instance_given_up",
    ),
    "| time for which a client waits that loads or unloads": (
        "deployments/control/test_model_commands.py::test_who_waits_for_a_model_that_loads_for_ever_hears_of_it",
    ),
    "| time in which a Python model, with all that it imports": (
        "deployments/backends/test_python_auto_complete.py::test_hanging_model_and_what_it_started_are_ended",
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
    "| regions of shared memory that are registered on a node": (
        "deployments/replica/test_shared_memory.py::test_regions_that_nobody_unregisters_leave_descriptors_for_all_else",
    ),
    "| reason that is kept of why a model": (
        "deployments/control/test_desired_state.py::test_a_long_reason_is_kept_in_short",
    ),
    "| name of such a region; its key |": ("deployments/replica/test_shared_memory.py::test_names_and_keys_are_short",),
    "| path of a file that is sent with a load; each name in it |": (
        "deployments/replica/test_override_files.py::test_a_path_that_no_file_system_takes_is_refused",
    ),
    "| `config` of a load |": (
        "app/service/test_model_control.py::test_the_configuration_of_a_load_is_no_larger_than_its_file_may_be",
        "deployments/control/test_given_configurations.py::"
        "test_the_loop_goes_on_while_a_configuration_is_read_and_a_large_one_is_refused",
    ),
    "| `config.pbtxt` | 1 MiB |": (
        "repository_loader/test_hostile_files.py::test_the_largest_file_is_read_in_seconds",
    ),
    # HTTP
    "A malformed request is answered once": (HOSTILE, HTTP + "test_refuses_what_is_not_http_and_closes"),
    "well-formed HTTP and wrong otherwise": (
        "e2e/hostile/test_hostile_http.py::test_case_of_the_codec_keeps_its_connection",
    ),
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
    "Readiness, metadata and statistics may not be kept": (
        "app/http/test_api.py::test_no_cache_between_may_keep_an_answer",
    ),
    "Events of `generate_stream` ask a proxy": (
        "app/http/test_generate_exchange.py::test_stream_asks_proxies_to_pass_each_event_on_at_once",
    ),
    "An answer that is cut off ends with a reset": (
        "app/http/test_listening.py::test_a_stream_that_is_cut_off_ends_with_a_reset",
    ),
    "A Unix socket knows no reset": (
        "app/http/test_listening.py::test_a_stream_that_is_cut_off_over_a_unix_socket_has_no_last_chunk",
    ),
    "`generate_stream` tells in plain JSON": (
        "conformance/test_http_cases.py::test_answers_as_triton",
        "app/http/test_generate_exchange.py::test_what_the_model_has_not_taken_is_told_in_plain_json",
        "app/http/test_generate_exchange.py::test_an_error_before_the_first_response_decides_the_status",
        "deployments/lane/test_lane.py::test_an_error_says_whether_the_model_has_taken_the_request",
    ),
    "Error bodies are one sentence": (HOSTILE, ANSWERS + "test_error_bodies_are_at_most_a_kibibyte"),
    "503 carries `Retry-After: 1`": (HTTP + "test_tells_an_unavailable_client_to_try_again",),
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
        "deployments/lane/test_slow_streams.py::test_all_of_them_are_encoded_beside_the_loop",
    ),
    "Nor does such an answer": (
        "deployments/lane/test_slow_streams.py::test_a_response_to_another_client_passes_them",
        "deployments/lane/test_slow_streams.py::test_one_that_is_quick_to_encode_comes_after_what_came_before_it",
        "deployments/lane/test_slow_streams.py::test_a_response_on_a_grpc_stream_does_not_pass_what_ended_before_it",
    ),
    # Deployment handles
    "Calls of `handle.infer.remote": (CLUSTER + "test_another_application_composes_two_models_by_their_handles",),
    "Each has an outcome of its own": (
        HANDLE_CALLS + "test_a_call_that_is_wrong_fails_alone",
        HANDLE_CALLS + "test_a_quick_call_does_not_wait_for_a_slow_one",
    ),
    "A call that is cancelled leaves the queue": (HANDLE_CALLS + "test_a_call_that_is_cancelled_leaves_the_queue",),
    "A call of a decoupled model is refused": (HANDLE_CALLS + "test_a_decoupled_model_is_refused",),
    # Readiness
    "`/v2/health/live` answers": (STARTING + "test_http_is_live_and_not_ready",),
    "`/v2/health/ready` is 200": (
        "e2e/shared/test_metadata.py::test_server_with_broken_models_is_not_ready",
        CLUSTER + "test_deployed_service_is_ready_and_answers",
        "app/ingress/test_directory_follower.py"
        "::test_a_model_that_comes_later_makes_no_server_unready_that_need_not_have_every_model",
    ),
    "Until an ingress has heard from the controller": (STARTING + "test_http_answers_503_and_when_to_come_again",),
    "Where a repository cannot be read": (
        STARTING + "test_it_says_why_no_model_is_known_where_a_repository_cannot_be_read",
        "app/cli/test_progress.py::test_why_a_repository_cannot_be_read_is_said_once",
        "app/ingress/test_directory_follower.py::test_why_a_repository_cannot_be_read_is_followed_by_news",
        "deployments/control/test_repository_controller.py::test_a_follower_hears_why_a_repository_cannot_be_read",
        "deployments/control/test_repository_controller.py::test_a_follower_hears_what_the_first_reading_waits_for",
        "deployments/control/test_node_completion.py::test_it_is_known_for_which_model_the_reading_waits",
        "repository_loader/storage/test_mirror.py::test_it_is_known_which_model_is_fetched",
    ),
    "News of 300 models": (
        "app/ingress/test_directory_follower.py::test_news_of_300_models_never_hold_the_loop_for_long",
    ),
    "A model that cannot be loaded is UNAVAILABLE": (INDEX + "test_broken_model_is_unavailable_with_its_reason",),
    "So is one with a pipe or a device among its files": (
        "repository_loader/test_hostile_files.py::test_a_pipe_or_a_device_fails_its_model_and_no_other",
        "repository_loader/test_fingerprint.py::test_more_files_than_a_model_has_are_not_all_looked_at",
    ),
    "An ensemble whose step could not be loaded": (INDEX + "test_broken_model_is_unavailable_with_its_reason",),
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
    # Console
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
    "It names a GPU by its number": (
        "app/console/test_page.py::test_a_gpu_has_one_name_where_it_is_busy_and_where_it_is_held",
        "e2e/test_gpus.py::test_the_console_is_told_which_cards_each_replica_has",
    ),
}
