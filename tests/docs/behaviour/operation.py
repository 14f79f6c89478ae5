"""Starting and watching."""

from tests.docs.behaviour.modules import (
    ACCESS,
    ALERTS,
    CLUSTER,
    COMMANDS,
    CONSOLE,
    LANE_BOUNDS,
    LOG,
    METRICS,
    NAMESAKES,
    OWN_METRICS,
    PROCESS_OUTPUT,
    REFUSALS,
    SEVERAL,
    SLOW,
    STATISTICS,
    TRACING,
)

TESTS: dict[str, tuple[str, ...]] = {
    # Starting
    "The local Ray has as many CPUs": (
        "deployments/test_available_cores.py::test_the_quota_of_a_container_bounds_the_cores",
        "deployments/test_available_cores.py::test_the_affinity_bounds_them_too",
        "app/cli/test_local_ray.py::test_ray_has_the_cores_that_this_process_may_use",
        "app/cli/test_validation.py::test_a_machine_has_the_processors_that_this_process_may_use",
    ),
    "ONNX Runtime and PyTorch start no more threads": (
        "deployments/backends/test_onnxruntime_session.py::"
        "test_a_session_has_no_more_threads_than_there_are_cores_for_this_process",
        "deployments/backends/test_pytorch.py::test_instances_share_the_cpus_of_the_node_unless_told_otherwise",
    ),
    "Where Ray runs its workers at a niceness above 0": (
        "app/ingress/test_niceness.py::test_how_to_start_ray_is_said_where_workers_come_last",
        CLUSTER + "test_application_is_healthy_again_after_a_node_has_died",
    ),
    "`eagleray ray …` is Ray's own": ("app/cli/test_ray_command.py::test_what_it_is_told_and_how_it_ends_are_rays",),
    "Nodes that `eagleray ray start` starts": (
        "app/cli/test_ray_command.py::test_nodes_run_as_a_server_needs_unless_the_environment_says_otherwise",
        CLUSTER + "test_workers_of_a_node_that_eagleray_started_are_forked",
    ),
    "Nodes of one cluster may be started either way": (
        CLUSTER + "test_application_is_healthy_again_after_a_node_has_died",
    ),
    "As the first process of a container": (
        "app/cli/test_first_process.py::test_it_does_what_a_container_needs",
        "app/cli/test_first_process.py::test_any_other_process_goes_on_itself",
    ),
    "Several Eagleray may share `/tmp`": (
        "deployments/lane/test_owned_file.py::test_process_with_numbers_of_its_own_leaves_the_socket_alone",
        "deployments/lane/test_owned_file.py::test_what_a_dead_process_left_is_removed",
        "e2e/test_shared_folders.py::test_servers_that_cannot_see_each_others_processes_leave_each_others_files",
    ),
    "variable that is no setting is named": (
        "app/test_triton_flags.py::test_each_command_names_a_mistyped_variable_with_the_closest_right_one",
        "app/test_triton_flags.py::test_a_variable_that_is_near_no_setting_is_named_without_one",
        CLUSTER + "test_log_names_a_mistyped_variable",
    ),
    "A flag of `tritonserver` that means nothing": (
        "app/test_triton_flags.py::test_every_flag_of_tritonserver_is_taken",
        "app/test_triton_flags.py::test_every_flag_of_tritonserver_is_taken_by_serve_deploy",
        "app/test_triton_flags.py::test_a_backends_setting_without_effect_is_said_so",
    ),
    "Two listeners on one port": (
        COMMANDS + "test_wrong_usage_is_named_and_ends_with_2",
        "app/cli/test_log_file.py::test_a_log_file_that_cannot_be_opened_is_refused",
        "app/test_settings.py::test_two_listeners_on_one_address_are_refused_however_it_is_spelled",
    ),
    "So are, by an `eagleray serve` that starts Ray": (
        "app/cli/test_listener_files.py::test_a_certificate_that_is_not_there_is_refused_by_its_name",
        "app/cli/test_listener_files.py::test_a_key_of_another_certificate_is_refused",
        "app/cli/test_listener_files.py::test_a_unix_socket_that_cannot_be_is_refused",
    ),
    "What a Python model prints": (NAMESAKES + "test_what_a_model_prints_and_logs_appears_with_its_name",),
    "A model never waits for that": (
        "app/cli/test_console_pipe.py::"
        "test_a_console_that_does_not_read_keeps_nobody_waiting_and_what_was_dropped_is_counted",
    ),
    "A console that stands still": (
        "app/cli/test_standard_streams.py::"
        "test_a_reader_that_stands_still_holds_up_nobody_and_has_the_next_lines_when_it_reads_again",
    ),
    "All lines are in Ray's log folder": (NAMESAKES + "test_what_a_model_prints_and_logs_appears_with_its_name",),
    "On a terminal, a table shows the models": (
        "app/cli/test_progress.py::test_the_table_is_never_taller_than_the_terminal",
        "app/cli/test_progress.py::test_what_failed_is_shown_before_what_is_ready",
    ),
    "The last line of the start": ("app/cli/test_progress.py::test_summary_counts_what_failed",),
    "A start takes as long as its models do": (
        "app/cli/test_local_server.py::test_models_have_all_the_time_that_they_take",
    ),
    "A Ray of its own that has not stopped": ("app/cli/test_ray_watch.py::test_a_ray_that_does_not_stop_is_killed",),
    "One whose own processes are not": (
        "app/cli/test_local_server.py::test_a_start_without_a_controller_or_an_ingress_fails_in_time",
    ),
    "With `RAY_USE_TLS`, `eagleray serve` names": (
        "app/cli/test_ray_tls.py::test_variables_that_are_missing_are_named_before_ray_is_started",
        "app/cli/test_ray_tls.py::test_a_file_that_is_not_there_is_named",
        "app/cli/test_ray_tls.py::test_a_key_of_another_certificate_is_refused",
        "app/cli/test_ray_tls.py::test_a_certificate_of_another_root_is_refused",
        "app/cli/test_ray_tls.py::test_a_certificate_for_another_address_is_refused",
    ),
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
        "app/cli/test_ray_token.py::test_without_a_home_the_token_lives_in_the_environment",
        "app/cli/test_ray_token.py::test_a_token_that_cannot_be_read_is_not_used",
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
    "refuses a cluster in which Eagleray runs already": (
        CLUSTER + "test_serve_joins_a_running_cluster_and_leaves_it_running",
    ),
    # Log
    "Each switch of Triton's log settings": (LOG + "test_each_switch_holds_by_itself",),
    "Log settings that a client changes hold in all processes": (
        NAMESAKES + "test_log_settings_hold_for_all_processes_and_the_log_file",
        "deployments/replica/test_node_log.py::test_what_an_ingress_sets_holds_in_other_processes_of_the_node",
        "deployments/replica/test_node_log.py::test_a_process_that_starts_later_has_the_settings_of_the_node",
        PROCESS_OUTPUT + "test_log_settings_hold_for_a_model_in_a_process_of_its_own",
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
        "e2e/shared/test_log_rotation.py::test_what_models_write_is_put_aside_and_the_oldest_removed",
        "e2e/shared/test_log_rotation.py::test_a_server_says_when_its_user_does_not",
    ),
    "another cluster of your own goes by": (
        "e2e/shared/test_log_rotation.py::test_what_models_write_is_put_aside_and_the_oldest_removed",
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
    # Commands
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
        "app/cli/test_model_logs.py::test_of_an_embedded_model_the_lines_of_the_ingress_that_name_it",
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
        "app/cli/test_doctor.py::test_a_container_that_may_have_few_threads_is_named",
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
    "A node with an ingress is never idle": (
        "eagleray/test_scaling.py::test_every_node_has_ingresses_though_nothing_else_runs_there",
    ),
    "With `--min-ingress-nodes` nodes on which": (
        "eagleray/test_scaling.py::test_a_node_on_which_nothing_else_runs_loses_its_ingresses_after_a_while",
        "eagleray/test_scaling.py::test_so_many_nodes_keep_their_ingresses_whatever_runs",
    ),
    "The head is one of these": ("app/test_builder.py::test_the_controller_keeps_no_node_that_may_be_given_back",),
    "Ingresses of a node that drains go at once": (
        "eagleray/test_scaling.py::test_ingresses_of_the_only_worker_stay_until_another_has_some",
        "eagleray/test_scaling.py::test_no_ingress_is_to_take_the_place_of_those_on_a_node_that_drains",
    ),
    "Beside other workers no node is started": (
        "eagleray/test_scaling.py::test_no_ingress_is_to_take_the_place_of_those_on_a_node_that_drains",
    ),
    "A GPU from which the last model has gone": (
        "deployments/control/test_repository_controller.py::test_cards_that_no_model_is_on_are_given_back",
    ),
    "With port 0 the ingresses of a node share": (
        SEVERAL + "test_both_are_ready_when_the_server_says_so",
        SEVERAL + "test_when_one_is_killed_the_other_serves_on_and_a_new_one_joins",
    ),
    "System shared memory that a client registers": (
        SEVERAL + "test_shared_memory_registered_at_one_is_known_to_both",
        "deployments/replica/test_shared_memory.py::test_every_process_of_the_node_has_a_change_at_once",
    ),
    "A region is the object that had its key when": (
        "deployments/replica/test_shared_memory.py::"
        "test_an_object_that_its_client_has_unlinked_is_mapped_by_all_while_it_is_registered",
    ),
    "What a request names stays until it is answered": (
        "deployments/replica/test_shared_memory.py::test_an_output_goes_where_its_region_was_when_the_request_came",
        "deployments/replica/test_shared_memory.py::test_a_view_outlives_the_registration",
    ),
    "opens it itself, when it runs the first request that names it.": (
        "deployments/replica/test_gpu_inputs.py::test_it_is_closed_once_nobody_can_ask_for_it",
        "e2e/test_gpus.py::test_a_python_model_may_take_its_inputs_from_the_memory_of_its_gpu",
    ),
    "A client may unregister the region before that": (
        "deployments/replica/test_gpu_inputs.py::test_a_queued_request_gets_what_is_unregistered_meanwhile",
        "deployments/replica/test_gpu_inputs.py::test_a_request_whose_memory_cannot_be_opened_fails_alone",
        "e2e/test_gpus.py::test_memory_that_its_client_has_taken_away_fails_its_request_alone",
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
    "Those of a model stay when it is": (
        "deployments/control/test_client_settings.py::"
        "test_settings_of_models_by_ever_new_names_do_not_grow_without_end",
    ),
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
    "One that stands still, or whose node is cut off, holds up": (
        SEVERAL + "test_while_one_stands_still_what_the_other_is_told_is_done",
    ),
    "`--http-unix-socket` is one file": (
        "app/http/test_listening.py::test_takes_a_path_over_and_leaves_it_to_who_has_it",
    ),
    "`eagleray serve` refuses one on which another": (
        "app/cli/test_ports.py::test_a_unix_socket_stays_with_the_server_that_listens_on_it",
    ),
    "With `--trace-config mode=opentelemetry` a request": (
        TRACING + "test_an_ensemble_over_two_nodes_is_one_trace",
        "app/trace/test_span_export.py::test_a_sampled_parent_is_always_traced",
    ),
    "A collector that does not answer": (
        "app/trace/test_span_export.py::test_a_collector_that_does_not_answer_holds_up_no_request",
    ),
    # Statistics and metrics
    "The metrics port tells what was counted on its node": (
        STATISTICS + "test_replicas_of_one_model_are_counted_together",
        "deployments/replica/test_node_counters.py::test_everyone_sees_everyones_counts_at_once",
    ),
    "Scrape every node once": (
        "deployments/replica/test_node_counters.py::test_one_process_speaks_for_the_node_until_it_ends",
    ),
    "While Ray's head does not answer, statistics": (
        "app/ingress/test_cluster_counters.py::test_while_ray_does_not_answer_the_nodes_are_those_it_named_last",
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
        "e2e/shared/test_dashboards.py::test_every_panel_shows_data_while_the_examples_serve",
        "e2e/shared/test_dashboards.py::test_panels_of_what_is_not_here_show_data_of_samples_that_are_made_up",
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
    "The metrics of a version end": (
        "app/metrics/test_scrape.py::test_metrics_of_a_version_end_an_hour_after_it_was_unloaded",
        "deployments/control/test_model_table.py::test_what_was_unloaded_an_hour_ago_is_long_gone",
    ),
    "Until then they go on": (
        "deployments/replica/test_counter_sweep.py::test_what_is_long_gone_is_given_back_and_counts_from_zero",
        "deployments/replica/test_node_counters.py::test_versions_that_come_and_go_find_room_for_ever",
        "deployments/replica/test_node_counters.py::test_what_the_dead_have_counted_of_versions_that_are_gone_is_dropped",
        "app/ingress/test_cluster_counters.py::test_what_dead_nodes_had_counted_of_versions_that_are_gone_is_dropped",
    ),
    "A request that fails in the ingress counts": (
        LANE_BOUNDS + "test_requests_under_way_are_bounded",
        "deployments/lane/test_full_queue.py::test_a_request_is_refused_when_every_queue_is_full",
    ),
    "What a client has given up counts as CANCELED": (
        "behaviours/test_behaviours.py::test_every_request_is_counted_once",
    ),
    "A gRPC deadline that passes gives a request up": (
        "e2e/shared/test_statistics.py::test_a_model_that_ends_after_its_clients_deadline_has_succeeded_though_its_client_gave_up",
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
    "Of a dead node it has what ingresses": (
        "app/ingress/test_cluster_counters.py::"
        "test_ingresses_tell_the_same_of_a_dead_node_whatever_each_has_heard_of_it",
    ),
}
