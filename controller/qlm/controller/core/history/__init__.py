"""Learned figures of classes and instances that outlive views, stores and controllers."""
