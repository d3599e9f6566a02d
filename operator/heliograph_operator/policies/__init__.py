"""Applies what stands for objects of brokers, deletes it there, and watches brokers for drift."""
