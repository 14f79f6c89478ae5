"""Applications in Serve, and other versions and settings of Eagleray."""

from tests.docs.behaviour.modules import CLUSTER, REDEPLOYED, ROUTING, STORAGE

TESTS: dict[str, tuple[str, ...]] = {
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
    "An application of Eagleray's own that somebody deletes": (
        CLUSTER + "test_what_somebody_has_deleted_or_replaced_is_noticed",
    ),
    "A model that changes in place": (
        "deployments/replica/test_model_host.py::test_reload_in_place_refuses_no_request",
    ),
    # Other versions and settings
    "`serve deploy` of other code": (
        "deployments/control/test_code_version.py::test_other_code_of_what_replicas_run_is_another_version",
        "deployments/control/test_code_version.py::test_replicas_of_other_code_are_replaced",
    ),
    "As long as an ingress finds only replicas": (
        ROUTING + "test_who_asks_for_a_model_whose_replicas_are_of_another_version_hears_it",
    ),
    "`serve deploy` of a setting that there is not": (
        "app/test_builder.py::test_what_no_ingress_could_start_with_is_refused",
        "e2e/test_redeployment.py::test_what_runs_goes_on_when_a_deployment_is_refused_or_brings_what_cannot_be_read",
    ),
    "So does one whose ports are": ("app/test_builder.py::test_a_port_of_serves_own_proxies_is_refused",),
    "And so does any on a cluster": ("app/test_builder.py::test_a_serve_that_takes_no_routers_is_refused",),
    "`serve deploy` starts the ingresses of each node anew": (
        "e2e/test_redeployment.py::test_the_only_ingress_of_a_node_serves_until_another_knows_as_much",
        "e2e/test_redeployment.py::test_ingresses_that_cannot_start_leave_those_that_run_where_they_are",
        "e2e/test_redeployment.py::test_of_two_ingresses_of_a_node_one_always_takes_requests",
        CLUSTER + "test_application_is_healthy_again_after_a_node_has_died",
        "app/ingress/test_successor.py::test_an_ingress_that_is_deployed_anew_ends_when_its_successor_listens",
        "app/ingress/test_successor.py::test_an_ingress_that_nothing_replaces_waits_for_nobody",
        "app/test_builder.py::test_no_number_of_ingresses_is_given_that_serve_would_go_by_until_it_knows_the_nodes",
    ),
    "Linux resets who is still connecting": (
        "app/edge/test_listening_socket.py::test_clients_of_a_socket_that_closes_are_handed_to_the_one_that_listens_on",
    ),
    "`serve deploy` of a changed file reads the repositories anew": (
        "deployments/control/test_state_store.py::test_a_successor_goes_on_with_what_was_stored_and_one_that_was_deployed_anew_knows_what_ran",
    ),
    "What clients have loaded, with what configuration and files": (
        "deployments/control/test_client_wishes.py::test_what_was_loaded_is_loaded_and_what_was_unloaded_is_not",
        "deployments/control/test_client_wishes.py::test_a_model_is_loaded_with_what_its_client_has_sent",
        "deployments/control/test_client_wishes.py::test_repositories_that_clients_have_registered_stay_so_while_they_can_be_read",
        "deployments/control/test_client_wishes.py::test_traffic_holds_for_the_models_that_there_are",
        "e2e/test_redeployment.py::test_of_two_ingresses_of_a_node_one_always_takes_requests",
    ),
    "Models that `load_model` names and did not before": (
        "deployments/control/test_client_wishes.py::test_models_that_a_deployment_names_anew_are_loaded_and_those_it_names_no_longer_are_not",
        "deployments/control/test_client_wishes.py::test_what_a_client_has_sent_stays_though_its_model_is_named_no_longer",
    ),
    "What runs when `serve deploy` brings other settings": (
        "e2e/test_redeployment.py::test_a_model_answers_and_is_ready_while_another_deployment_has_it_loaded_elsewhere",
        REDEPLOYED + "test_what_goes_elsewhere_stays_where_it_was_until_it_is_ready",
        REDEPLOYED + "test_a_version_stays_until_the_next_is_ready",
        REDEPLOYED + "test_what_runs_as_it_did_is_not_loaded_again",
        "deployments/control/test_reconciler.py::test_what_a_former_controller_deployed_and_leaves_stays_as_it_is",
    ),
    "What does not load leaves what ran, with": (
        REDEPLOYED + "test_what_goes_elsewhere_stays_where_it_was_until_it_is_ready",
        REDEPLOYED + "test_what_an_ensemble_links_goes_together",
    ),
    "Where there is no room for both, which Serve may say": (
        REDEPLOYED + "test_versions_that_go_take_no_place_from_others",
        REDEPLOYED + "test_a_trial_that_ends_well_leaves_only_what_was_deployed",
        "deployments/control/test_status_reader.py::test_a_deployment_that_finds_no_room_beside_what_ran_is_told",
    ),
    "So it does where other code is deployed": (
        "deployments/control/test_state_store.py::test_a_state_of_other_code_says_nothing_of_what_ran",
    ),
    "What ran also stays where what `serve deploy` brings": (
        "e2e/test_redeployment.py::test_what_runs_goes_on_when_a_deployment_is_refused_or_brings_what_cannot_be_read",
        REDEPLOYED + "test_what_finds_no_place_serves_on_until_the_cluster_has_one",
        REDEPLOYED + "test_what_an_ensemble_links_serves_on_together",
        REDEPLOYED + "test_an_ensemble_that_cannot_be_read_holds_up_what_changes_with_it_and_nothing_else",
        REDEPLOYED + "test_the_steps_of_an_ensemble_that_cannot_be_read_stay",
    ),
    "All of it is loaded together once there is a node": (
        REDEPLOYED + "test_what_finds_no_place_serves_on_until_the_cluster_has_one",
        REDEPLOYED + "test_what_an_ensemble_links_serves_on_together",
        REDEPLOYED + "test_what_is_postponed_is_tried_again_once_something_goes",
        REDEPLOYED + "test_what_has_no_room_after_all_is_tried_again_only_when_something_changes",
        REDEPLOYED + "test_what_was_loaded_or_unloaded_since_is_postponed_no_longer",
        "deployments/control/test_repository_watch.py::test_what_a_deployment_brought_in_vain_is_loaded_once_it_is_as_what_runs",
        "deployments/control/test_repository_watch.py::test_what_is_postponed_together_is_not_parted_by_the_watch",
    ),
    "A new ensemble that has such a model waits for it": (
        REDEPLOYED + "test_what_an_ensemble_links_serves_on_together",
    ),
    "Where others would find no place beside what stays": (
        REDEPLOYED + "test_what_would_leave_others_no_place_does_not_serve_on",
    ),
    "A second Eagleray in a cluster": (
        "deployments/control/test_sole_application.py::test_a_second_eagleray_is_refused_until_the_first_has_gone",
        "e2e/test_redeployment.py::test_a_second_eagleray_in_the_cluster_is_refused",
    ),
    "What another version has written on a node": (
        "deployments/replica/test_node_counters.py::test_rows_of_another_version_are_left_out_and_all_others_counted",
        "deployments/replica/test_node_counters.py::"
        "test_sums_of_the_dead_that_another_version_has_left_keep_nobody_from_starting",
        "app/ingress/test_cluster_counters.py::test_what_a_node_of_another_version_counts_otherwise_is_left_out",
        "deployments/replica/test_node_log.py::"
        "test_settings_that_a_newer_ingress_has_written_hold_as_far_as_they_are_known",
        "deployments/control/test_code_version.py::test_a_controller_of_other_code_does_not_go_on_with_what_was_stored",
        "deployments/control/test_directory.py::"
        "test_what_a_controller_of_another_version_tells_besides_or_not_at_all_keeps_nobody_from_following",
        "app/service/test_log_settings.py::test_what_clients_have_set_in_a_newer_version_is_left_out",
        "app/service/test_trace_settings.py::test_what_clients_have_set_in_a_newer_version_is_left_out",
        f"{STORAGE}test_http_archive.py::test_what_another_version_has_written_into_the_cache_is_fetched_again",
    ),
    "A controller or a replica that starts with other code": (
        "protocol/test_by_name.py::test_fields_are_found_by_their_names",
        "protocol/test_by_name.py::test_all_that_processes_are_started_with_travels_so",
    ),
    "A process of a Python model that would speak otherwise": (
        "deployments/backends/test_python_child.py::test_a_process_of_other_code_than_its_replica_is_refused",
    ),
    "A response cache whose size is changed": (
        "deployments/core/test_response_cache.py::test_a_cache_of_another_size_goes_with_the_last_that_uses_it",
        "deployments/core/test_response_cache.py::"
        "test_what_processes_that_were_killed_have_left_goes_when_one_starts_otherwise",
        "deployments/core/test_response_cache.py::test_another_form_of_what_is_kept_is_another_file",
    ),
    "Resources of `--rate-limit-resource` that are changed": (
        "deployments/replica/test_node_rate_limiter.py::"
        "test_what_is_given_anew_holds_while_processes_of_before_are_there",
    ),
    "With another Ray than the one that is needed": (
        "app/test_other_ray.py::test_another_ray_is_named_in_one_sentence",
        "app/test_other_ray.py::test_the_ray_that_is_needed_is_the_one_that_is_declared",
    ),
}
