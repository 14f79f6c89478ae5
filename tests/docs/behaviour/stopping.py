"""Stopping."""

from tests.docs.behaviour.modules import BACK_PRESSURE, COMMANDS

TESTS: dict[str, tuple[str, ...]] = {
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
    "A gRPC stream takes nothing more": (
        "app/grpc/test_stream_infer.py::test_a_stream_without_a_request_ends_when_the_server_stops",
        "app/grpc/test_stream_infer.py::test_a_stream_takes_nothing_more_and_is_answered_when_the_server_stops",
    ),
    "A connection that is open when the server stops": (
        "app/http/test_time_limits.py::"
        "test_a_connection_on_which_nothing_comes_is_closed_a_second_after_the_server_began_to_stop",
        "app/http2/test_connection.py::test_shuts_an_idle_connection_down_when_it_knows_or_after_a_second",
        "app/http/test_listening.py::test_a_connection_that_waits_to_be_accepted_when_the_server_stops_is_answered",
        "app/http/test_listening.py::test_a_client_that_shakes_hands_when_the_server_stops_is_answered",
    ),
    "One that begins in the hundredth of a second": (
        "app/http/test_listening.py::"
        "test_a_client_that_comes_when_the_server_has_looked_for_the_last_time_is_left_to_another",
        "app/edge/test_listening_socket.py::test_a_socket_that_lets_no_more_in_leaves_later_clients_to_another",
    ),
    "What comes on an open one is": (
        "app/http/test_time_limits.py::test_a_request_that_was_on_its_way_when_the_server_began_to_stop_is_answered",
        "app/http2/test_connection.py::test_finishes_what_is_under_way_when_it_shuts_down",
    ),
    "When the raylet or the GCS has ended": (COMMANDS + "test_a_server_whose_ray_has_ended_ends_with_1",),
    "The command says so, answers what is under way": (COMMANDS + "test_a_server_whose_ray_has_ended_ends_with_1",),
    "A third signal": (COMMANDS + "test_a_third_signal_kills_everything_at_once",),
    "Where the command itself is killed": ("e2e/test_killed_server.py::test_what_a_killed_server_has_started_ends",),
}
