"""The policies of topics and subscriptions: one table of what each is, and how their levels and limits combine."""
