"""How models are loaded, and their versions."""

from tests.docs.behaviour.modules import (
    CALLS,
    CANARY,
    CANARY_METERS,
    CLUSTER,
    CONTROL,
    IMPLICIT_STATE,
    LEAVING,
    MIRROR,
    MOVES,
    NAMESPACES,
    POLL,
    RELOADS,
    REPOSITORIES,
    SEQUENCE_MODELS,
    SHARED_NAMES,
    SHARES,
    SPLIT,
    STORAGE,
    TESTING,
    TRAFFIC,
    UNLOADS,
)

TESTS: dict[str, tuple[str, ...]] = {
    # Loading and unloading
    "With `--model-control-mode explicit` the models": (
        CONTROL + "test_only_chosen_models_are_loaded_and_patterns_choose",
        CONTROL + "test_models_come_and_go_by_http",
        CONTROL + "test_models_come_and_go_by_grpc",
    ),
    "A load is answered when the model is ready": (CONTROL + "test_models_come_and_go_by_http",),
    "Replicas of its own that have something under way": (
        UNLOADS + "test_what_waits_is_answered_and_a_load_meanwhile_serves_in_the_replica_that_answers",
        LEAVING + "test_what_is_busy_unloads_in_place_and_ends_when_it_is_no_longer",
        LEAVING + "test_what_leaves_makes_room_for_what_finds_none",
    ),
    "A model that is loaded again meanwhile serves at once": (
        UNLOADS + "test_what_waits_is_answered_and_a_load_meanwhile_serves_in_the_replica_that_answers",
        "deployments/replica/test_changes.py::test_a_model_is_loaded_again_while_it_answers_what_it_had",
    ),
    "A replica that is not needed any more as the load has fallen": (
        "e2e/test_autoscaling.py::test_a_stream_longer_than_an_end_may_take_is_answered_by_the_replica_that_goes",
    ),
    "It has 10 s from when its model is changed or unloaded": (
        "deployments/replica/test_departure.py::test_it_becomes_short_when_the_replica_must_go",
        "deployments/replica/test_departure.py::"
        "test_a_replica_must_go_when_its_application_ends_or_changes_or_others_find_no_room",
    ),
    "A replica that Serve ends": (UNLOADS + "test_what_takes_longer_than_a_replica_that_ends_has_goes_to_another",),
    "A request that takes longer goes to another replica": (
        UNLOADS + "test_what_takes_longer_than_a_replica_that_ends_has_goes_to_another",
        "deployments/lane/test_lane.py::test_a_request_is_not_sent_again_once_a_response_was_delivered",
    ),
    "in an ensemble whose steps are unloaded": (
        "e2e/test_unloaded_ensembles.py::test_what_is_under_way_is_answered",
        "deployments/replica/test_hosted_ensembles.py::"
        "test_what_is_under_way_in_an_ensemble_is_answered_when_its_steps_are_unloaded_after_it",
        "deployments/control/test_leaving_deployments.py::test_a_packed_step_ends_at_once_under_another_controller",
    ),
    "A reload loads just the versions": (
        RELOADS + "test_instances_and_versions_change_in_place",
        RELOADS + "test_another_number_of_replicas_loads_nothing_anew",
        "repository_loader/test_fingerprint.py::test_a_change_concerns_the_versions_that_have_the_file",
    ),
    "What is new is ready and warm before": (
        RELOADS + "test_a_reload_under_load_fails_no_request_and_the_new_answers_come_after_the_old",
        RELOADS + "test_a_new_version_is_ready_before_the_old_one_goes",
    ),
    "Nor do requests fail for a reload that puts": (
        MOVES + "test_a_model_that_is_loaded_in_another_place_answers_all_the_way",
    ),
    "It serves where it was until": (
        MOVES + "test_a_model_that_is_loaded_in_another_place_answers_all_the_way",
        MOVES + "test_a_model_serves_on_where_it_is_when_another_place_cannot_have_it",
        "e2e/test_uneven_ingresses.py::test_a_model_that_goes_into_the_ingresses_serves_at_each_until_it_has_loaded_it",
    ),
    "Ensembles that have it answer all the while": (
        MOVES + "test_an_ensemble_answers_all_the_way_while_its_step_is_loaded_in_other_places",
    ),
    "Where the cluster has no room for both": (
        "deployments/control/test_desired_state.py::test_a_model_for_which_there_is_no_room_twice_goes_first",
        "deployments/control/test_former_places.py::test_a_group_that_grows_needs_room_for_what_it_was_as_well",
    ),
    "So does a replica that is to ask for other resources": (
        "deployments/control/test_reconciler.py::"
        "test_a_replica_with_other_resources_takes_those_of_the_old_one_where_there_is_no_room_for_both",
        "deployments/control/test_former_places.py::test_another_share_of_a_gpu_needs_room_beside_the_one_before",
    ),
    "One that is replaced as Eagleray is deployed with other options goes first": (
        "deployments/control/test_reconciler.py::"
        "test_what_finds_no_room_beside_what_a_former_controller_deployed_takes_its_place",
    ),
    "When any version of a load fails": (RELOADS + "test_what_served_serves_on_when_its_successor_does_not_load",),
    "Of what is loaded together": (
        "deployments/replica/test_put_back.py::"
        "test_what_was_there_before_a_trial_that_fails_is_back_though_its_files_are_others",
        "deployments/replica/test_put_back.py::test_it_goes_when_the_trial_has_succeeded",
        "deployments/control/test_trial_parts.py::"
        "test_models_that_change_together_may_come_back_until_they_are_on_trial_no_more",
    ),
    "Requests for one of them alone": (RELOADS + "test_an_ensemble_and_steps_in_other_processes_change_together",),
    "The index shows a new version that failed": (
        "e2e/test_poll.py::test_models_follow_the_repository",
        "deployments/control/test_desired_state.py::"
        "test_versions_that_fail_beside_those_that_serve_are_told_and_get_no_requests",
        "deployments/control/test_desired_state.py::test_a_version_that_cannot_be_read_is_told_beside_those_that_serve",
    ),
    "A load fails too when one of several replicas": (
        "deployments/control/test_status_reader.py::test_a_load_during_which_a_replica_dies_has_a_sentence_for_a_reason",
    ),
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
        "deployments/control/test_model_commands.py::test_a_load_of_one_step_loads_no_other_step_of_its_ensembles",
    ),
    "`unload_dependents` unloads those of them": (
        CONTROL + "test_an_ensemble_brings_its_steps_and_takes_along_those_that_nobody_else_needs",
    ),
    "An ensemble without one of its steps": (
        "deployments/control/test_model_table.py::test_an_ensemble_whose_step_was_unloaded_has_not_failed",
        CONTROL + "test_an_ensemble_brings_its_steps_and_takes_along_those_that_nobody_else_needs",
    ),
    "Commands for one model are done one after the other": (
        "deployments/control/test_model_commands.py::test_commands_for_a_model_are_done_in_the_order_in_which_they_came",
        CONTROL + "test_many_clients_at_once_end_in_one_state_and_the_next_command_decides",
        "e2e/control/test_reloads.py::test_a_slow_load_holds_up_no_other_model_of_its_process",
    ),
    "While packed models load": (
        "deployments/control/test_reconciler.py::"
        "test_loads_of_packed_models_are_gathered_while_others_load_but_not_for_long",
        "deployments/control/test_trial_ends.py::test_loads_that_succeed_together_make_one_change",
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
        "deployments/control/test_repository_watch.py::"
        "test_what_could_not_be_loaded_at_the_start_is_tried_again_like_what_was_tried_later",
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
        "deployments/control/test_model_commands.py::test_a_model_goes_on_when_another_repository_gets_its_name",
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
    "While a repository cannot be read, what runs of it stays": (
        "deployments/control/test_repository_watch.py::"
        "test_a_repository_that_cannot_be_read_keeps_what_runs_of_it_and_holds_no_other_up",
        "deployments/control/test_repository_watch.py::"
        "test_a_folder_that_has_gone_is_a_change_and_a_repository_that_has_gone_is_none",
    ),
    "A model whose folder is gone is not in the index": (
        "deployments/control/test_model_table.py"
        "::test_a_model_is_removed_that_no_repository_has_any_more_and_of_which_nothing_runs",
        "app/service/test_metadata.py::test_the_index_says_nothing_of_a_model_that_has_been_removed",
        POLL + "test_models_follow_the_repository",
        "e2e/control/test_reloads.py::test_what_served_serves_on_when_its_successor_does_not_load",
    ),
    "A model that takes longer than 5 s to be read": (
        "deployments/control/test_repository_watch.py::"
        "test_a_model_that_takes_long_to_say_what_it_is_holds_no_other_up",
    ),
    "While a file server does not answer": (
        "deployments/control/test_shared_look.py::"
        "test_a_hundred_that_ask_a_folder_that_is_away_have_one_look_under_way_and_wait_no_longer_than_they_would",
    ),
    "The index takes up to 2 s longer": (
        "deployments/control/test_shared_look.py::"
        "test_a_hundred_that_ask_a_folder_that_is_away_have_one_look_under_way_and_wait_no_longer_than_they_would",
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
    "While versions are loaded, those before them": (
        TRAFFIC + "test_a_version_that_is_added_with_all_the_weight_has_it_once_it_is_loaded",
        "deployments/control/test_desired_state.py::test_weights_of_a_version_that_is_on_trial_hold_when_it_is_ready",
    ),
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
        TRAFFIC + "test_steps_and_calls_that_name_no_version_go_by_the_weights",
    ),
    "Of any 500 requests each version": (
        "deployments/core/test_version_choice.py::test_each_share_is_kept_in_any_stretch_also_for_every_nth_request",
    ),
    "A sequence stays at its version": (
        SPLIT + "test_all_requests_of_a_sequence_go_to_one_version",
        SPLIT + "test_a_sequence_from_before_there_were_weights_stays_at_its_version",
        SPLIT + "test_a_sequence_that_goes_on_may_be_at_other_versions_and_one_that_starts_ends_there",
        "deployments/lane/test_sequence_lanes.py::"
        "test_a_sequence_is_found_in_another_version_where_one_may_hold_it_and_counts_there",
        TRAFFIC + "test_a_sequence_stays_at_its_version_while_the_weights_change",
        TRAFFIC + "test_a_sequence_stays_at_its_version_when_weights_come_and_go",
        "deployments/replica/test_host_router.py::test_a_sequence_of_steps_stays_at_its_version_when_weights_come_and_go",
        "deployments/core/test_version_choice.py::test_processes_agree_on_a_sequence_and_shares_of_sequences_are_kept",
        "deployments/core/test_version_choice.py::test_a_sequence_stays_until_it_ends_or_starts_anew_or_its_version_goes",
    ),
    "A version in `shadow` gets copies": (TRAFFIC + "test_a_shadow_gets_copies_and_nobody_hears_of_its_answers",),
    "A copy leaves after its request": (
        SPLIT + "test_a_copy_leaves_after_the_request_and_its_outcome_is_only_counted",
        SPLIT + "test_copies_are_bounded_by_number_and_by_bytes",
        TRAFFIC + "test_a_shadow_that_fails_fails_no_client",
    ),
    "Where no version is left to answer, none gets copies": (
        "repository_loader/test_traffic.py::test_copies_are_void_when_no_version_is_left_to_answer",
        TRAFFIC + "test_what_makes_no_sense_is_refused",
    ),
    "`eagleray_shadow_requests_total` counts them": (
        TRAFFIC + "test_a_shadow_gets_copies_and_nobody_hears_of_its_answers",
    ),
    "Requests that name shared memory are not copied": (
        SPLIT + "test_what_names_shared_memory_is_not_copied",
        CANARY_METERS + "test_steps_are_not_copied",
    ),
    "no request of a client goes on with a copy": (
        SPLIT + "test_a_sequence_in_a_version_that_becomes_a_shadow_goes_on_there_and_is_not_copied_to_it",
        "deployments/lane/test_sequence_lanes.py::"
        "test_a_version_that_has_a_copy_of_a_sequence_does_not_go_on_with_it_for_a_client",
        "deployments/schedulers/test_sequence.py::"
        "test_a_copy_and_a_sequence_of_the_same_id_do_not_go_on_with_each_other",
        "deployments/replica/test_remote_step.py::test_a_step_of_a_copied_sequence_is_one_too",
    ),
    "A canary gets a percentage that rises": (
        CANARY + "test_over_a_limit_it_is_rolled_back_at_once",
        SPLIT + "test_what_a_canary_got_is_measured_anew_in_each_step",
        TRAFFIC + "test_a_canary_that_fails_is_rolled_back_by_itself",
    ),
    "Steps of ensembles and calls of models by models are among its requests": (
        CANARY_METERS + "test_what_becomes_of_a_step_at_a_canary_is_counted",
        CANARY_METERS + "test_the_controller_hears_what_came_of_steps_at_canaries",
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
    "What is said of a field or a value that there is not": (
        "repository_loader/test_config_text.py::test_says_what_is_probably_meant",
        "repository_loader/test_config_json.py::test_says_what_is_probably_meant",
    ),
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
    "Which inputs a PyTorch model takes": (
        "deployments/backends/test_pytorch.py::test_inputs_that_forward_does_not_take_fail_the_load",
        "app/cli/test_validation.py::test_load_finds_what_only_loading_can_tell",
    ),
    "`--load` also loads": (
        "app/cli/test_validation.py::test_load_finds_what_only_loading_can_tell",
        "deployments/replica/test_trial_load.py::test_time_is_bounded",
        "deployments/replica/test_trial_load.py::test_memory_is_bounded",
        "deployments/test_free_memory.py::test_the_limit_of_a_container_bounds_the_memory",
    ),
    "The backends of Triton's own tests are built in": (
        TESTING + "test_identity_answers_with_its_inputs_and_three_parameters",
        TESTING + "test_identity_answers_zeros_for_an_optional_input_that_is_left_out",
        "repository_loader/test_testing_expectations.py::test_refuses_with_tritons_text",
        TESTING + "test_repeat_sends_each_element_after_its_delay",
        TESTING + "test_square_sends_its_number_that_often_then_fails_then_sends_nothing",
        "e2e/shared/test_sequences.py::test_interleaved_sequences_end_with_their_sums",
        IMPLICIT_STATE + "test_what_tritons_test_of_implicit_state_tries",
        SEQUENCE_MODELS + "test_an_iterative_sequence_runs_until_its_model_releases_it",
    ),
    "`eagleray.memory_bytes` of a model on the CPU": (
        "deployments/control/test_group_deployment.py::test_memory_that_a_model_says_it_takes_is_reserved_by_ray",
    ),
    # Repositories that are no folders
    "addresses are read as Triton reads them": (
        f"{STORAGE}test_location.py::test_reads_tritons_forms",
        f"{STORAGE}test_credentials.py::test_longest_prefix_of_the_credential_file_counts",
        "repository_loader/storage/test_http_archive.py::test_archive_is_a_repository",
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
        f"{STORAGE}test_archive.py::test_files_and_folders_are_counted",
        "repository_loader/storage/test_http_archive.py::test_archive_with_another_digest_is_refused",
    ),
    "What is found in a model's folder": (
        "repository_loader/storage/test_http_archive.py::"
        "test_what_there_is_to_say_of_a_model_names_the_address_of_its_files",
    ),
}
