"""What was learned of the traffic and the instances, so that it outlives views and controllers."""
